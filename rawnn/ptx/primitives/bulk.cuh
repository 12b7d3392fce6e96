// Tiles of a matrix copied between device and shared memory by the copy engine (TMA): one thread
// asks for 128 bytes x up to 256 rows at once, and a barrier in shared memory counts what arrives.
// sm_90 and later.
//
// The 16-byte chunks of a row lie permuted in shared memory (128-byte swizzle), so that a column of
// chunks meets every bank: chunk c of row r of a tile is at r * 128 + (c ^ r % 8) * 16. Tiles begin
// at multiples of 1,024 bytes. Beyond the matrix zeros are read; nothing is written but the rest of a
// row's last 16 bytes, so that rows have to be padded to 16 bytes.
//
// Measured on an H200, tiles of 128 rows, 128 blocks with 200 KB each on their way: 3.9 TB/s read,
// 3.8 TB/s read and written in place. Products by asynchronous copies of 16 bytes by every thread
// reached 3.0 TB/s, updates 3.5.
#pragma once
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "bulk.cuh needs the copy engine: compute capability 9.0"
#endif

namespace bulk {

// Where chunk `chunk` of row `row` of a tile lies, in bytes from its start.
__device__ __forceinline__ int place(int row, int chunk) {
  return row * 128 + (chunk ^ (row % 8)) * 16;
}

// A ring of slots in shared memory: one thread asks for what belongs into them in order, as they
// become free; the other warps take them in the same order.
struct Ring {
  unsigned int slots;     // address of the first
  unsigned int barriers;  // two a slot: it is full; it is done with
  int bytes;              // of a slot
  int depth;

  struct Turn {
    int slot = 0;
    int parity = 0;
  };

  // By one thread, ahead of everybody's use; `readers` arrivals say that a slot is done with.
  __device__ __forceinline__ void open(int readers) const {
    for (int slot = 0; slot < depth; ++slot) {
      ptx::init_barrier(barriers + slot * 16, 1);
      ptx::init_barrier(barriers + slot * 16 + 8, readers);
    }
    ptx::publish_barriers();
  }
  __device__ __forceinline__ void next(Turn& turn) const {
    if (++turn.slot == depth) turn = {0, turn.parity ^ 1};
  }
  __device__ __forceinline__ unsigned int at(const Turn& turn) const {
    return slots + static_cast<unsigned int>(turn.slot * bytes);
  }
  __device__ __forceinline__ unsigned int full(const Turn& turn) const {
    return barriers + static_cast<unsigned int>(turn.slot * 16);
  }
  __device__ __forceinline__ unsigned int done(const Turn& turn) const { return full(turn) + 8; }
};

}  // namespace bulk
