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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "bulk.cuh needs the copy engine: compute capability 9.0"
#endif

// What cuTensorMapEncodeTiled makes of a matrix and the shape of its tiles.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

namespace bulk {

__device__ __forceinline__ unsigned int shared_address(const void* pointer) {
  return static_cast<unsigned int>(__cvta_generic_to_shared(pointer));
}

// Where chunk `chunk` of row `row` of a tile lies, in bytes from its start.
__device__ __forceinline__ int place(int row, int chunk) {
  return row * 128 + (chunk ^ (row % 8)) * 16;
}

// A barrier's phase ends when `arrivals` threads have arrived and all bytes it expects are there.
__device__ __forceinline__ void init(unsigned int barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barriers known to the copy engine.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(unsigned int barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_expecting(unsigned int barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Returns once the phase of this parity has ended.
__device__ __forceinline__ void wait(unsigned int barrier, int parity) {
#pragma unroll 1
  for (int tries = 0; tries < 1 << 24; ++tries) {
    int done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.s32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) return;
  }
  __trap();  // what was asked for never came
}

// The tile whose first element is (row, column) to shared memory.
__device__ __forceinline__ void load(unsigned int to, const TensorMap& from, int row, int column,
                                     unsigned int barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&from), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void store(const TensorMap& to, int row, int column,
                                      unsigned int from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::
                   "l"(&to),
               "r"(column), "r"(row), "r"(from)
               : "memory");
}

// Ends a group of stores.
__device__ __forceinline__ void commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all but PENDING of this thread's groups have read shared memory.
template <int PENDING>
__device__ __forceinline__ void wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Waits until all of this thread's stores are in memory.
__device__ __forceinline__ void wait_stored() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// What was written to shared memory ahead of this, by this thread or by those whose arrival it
// waited for, may be stored by the copy engine.
__device__ __forceinline__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
      init(barriers + slot * 16, 1);
      init(barriers + slot * 16 + 8, readers);
    }
    publish_barriers();
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
