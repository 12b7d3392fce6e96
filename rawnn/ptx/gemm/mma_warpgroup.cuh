// wgmma: products by a warpgroup of four warps, both operands in shared memory (sm_90a only).
//
// A tile that cp.async wrote in the order of mma_copy.cuh, with the chunks of 128-byte rows permuted by
// the row modulo 8, has wgmma's 128-byte swizzle: deep tiles are "K-major" and wide tiles "MN-major"
// operands. Tiles begin at multiples of 1,024 bytes.
#pragma once
#include "device/warpgroup.cuh"
#include "gemm/mma_fragments.cuh"

// The descriptor of 64 rows of a (or all columns of b) of a tile, from `first` on, at a step of 32
// bytes of the inner dimension.
template <typename PANEL>
__device__ __forceinline__ unsigned long long operand(unsigned int tile, int first, int step) {
  static_assert(PANEL::kRowBytes == 128, "rows of 128 bytes");
  if constexpr (PANEL::kDeep) {
    const unsigned int panel = step / 4 * PANEL::kPanelBytes;
    return ptx::descriptor(tile + panel + first * 128 + step % 4 * 32, 16, 1024, true);
  } else {
    const unsigned int panel = first * PANEL::kSize / 128 * PANEL::kPanelBytes;
    return ptx::descriptor(tile + panel + step * (32 / PANEL::kSize) * 128, PANEL::kPanelBytes,
                           1024, true);
  }
}
