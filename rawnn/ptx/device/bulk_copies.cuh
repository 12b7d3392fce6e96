// The copy engine (TMA, cp.async.bulk, sm_90): one thread requests kilobytes, which cost the warps no
// issue slots. Loads count their bytes at a barrier in shared memory (barriers.cuh); a thread's stores
// form groups. The engine is a separate path to shared memory ("proxy"): what threads have written
// there needs fence_proxy_async() (fences.cuh) before a copy reads or overwrites it. What they have
// only read needs just a barrier, as in the pipelines of CUTLASS.
#pragma once
#include "primitives/types.cuh"

// The result of cuTensorMapEncodeTiled for a matrix and a box shape; a kernel takes it as
// `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

namespace ptx {

// Copies a multiple of 16 bytes from global memory to the shared address `to`, both 16-byte aligned.
__device__ __forceinline__ void load_bulk(unsigned int to, const void* from, int bytes,
                                          unsigned int barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Copies the box of a matrix whose first element is (row, column) to shared memory, with zeros outside
// the matrix. The map gives the matrix's size and how chunks are permuted: with the 128-byte swizzle,
// chunk c of 16 bytes of row r is at r * 128 + (c ^ r % 8) * 16.
__device__ __forceinline__ void load_tile(unsigned int to, const TensorMap& from, int row,
                                          int column, unsigned int barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&from), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// The same for the blocks of the cluster whose bits are set in `blocks`: the box is written at `to` in
// each of them and counts at `barrier` of each. It is read from memory once.
__device__ __forceinline__ void load_tile_to_blocks(unsigned int to, const TensorMap& from, int row,
                                                    int column, unsigned int barrier,
                                                    unsigned int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&from), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<unsigned short>(blocks))
      : "memory");
}

// The reverse; the part of the box outside the matrix is not written.
__device__ __forceinline__ void store_tile(const TensorMap& to, int row, int column,
                                           unsigned int from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::
                   "l"(&to),
               "r"(column), "r"(row), "r"(from)
               : "memory");
}

// Ends this thread's group of stores.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all but the last PENDING of this thread's groups have read shared memory.
template <int PENDING>
__device__ __forceinline__ void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Waits until all but the last PENDING of this thread's groups are written to memory.
template <int PENDING = 0>
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace ptx
