// Tiles of a matrix copied between device and shared memory by the copy engine (TMA): one thread
// requests 128 bytes x up to 256 rows at once, and a barrier in shared memory counts the bytes that
// arrive. sm_90 and later.
//
// The 16-byte chunks of a row are permuted in shared memory (128-byte swizzle), so that a column of
// chunks covers all banks: chunk c of row r of a tile is at r * 128 + (c ^ r % 8) * 16. Tiles begin
// at multiples of 1,024 bytes. Outside the matrix zeros are read. The rest of a row's last 16 bytes is
// written, and nothing else outside, so rows have to be padded to 16 bytes.
#pragma once
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "bulk.cuh needs the copy engine: compute capability 9.0"
#endif

namespace bulk {

// The byte offset of chunk `chunk` of row `row` in a tile.
__device__ __forceinline__ int place(int row, int chunk) {
  return row * 128 + (chunk ^ (row % 8)) * 16;
}

// A ring of slots in shared memory: one thread requests their contents in order, as slots become free;
// the other warps consume them in the same order.
struct Ring {
  unsigned int slots;     // address of the first
  unsigned int barriers;  // two for each slot: full, and free
  int bytes;              // of a slot
  int depth;

  struct Turn {
    int slot = 0;
    int parity = 0;
  };

  // Called by one thread before any use; `readers` arrivals free a slot.
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
