// A product of matrices, step 5: Hopper's tensor cores (wgmma) multiply what lies in shared memory, in
// the background; its copy engine (TMA) brings it there. A block of two warpgroups computes 128 x 128.
// Learned: one thread asks for a tile, and no registers hold it on its way: the warps' time is all for
// products. But they wait for every tile, and the copy engine waits for them.
/* rawnn
arch = "sm_90a"
grid = ["cdiv(n, 128)", "cdiv(m, 128)"]
block = 256
shared = "2 * 16384 + 1024"
maps = {a = [128, 64], b = [64, 64]}
reference = "a @ b"
shapes = {a = ["m", "k"], b = ["k", "n"], c = ["m", "n"]}
length = "k"
flops = "2 * m * n * k"
sizes = {m = "1..600", n = "8..600", k = "8..600"}
require = ["n % 8 == 0", "k % 8 == 0"]
*/
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "device/convert.cuh"
#include "device/shared.cuh"
#include "device/warpgroup.cuh"

constexpr int kM = 128, kN = 128, kK = 64;  // a block's tile of c, and how deep a stage is
constexpr int kBytesA = kM * kK * 2, kBytesB = kK * kN * 2;
constexpr int kPanel = kK * 64 * 2;  // 64 columns of b, 128 bytes a row

__global__ void __launch_bounds__(256)
copy_engine(const bfloat16* a, const bfloat16* b, bfloat16* c, int m, int n, int k,
            const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map) {
  const unsigned int left = ptx::shared_address(ptx::dynamic_shared<unsigned char, 1024>());
  const unsigned int right = left + kBytesA, full = right + kBytesB;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int top = blockIdx.y * kM, side = blockIdx.x * kN;

  if (threadIdx.x == 0) {
    ptx::init_barrier(full, 1);
    ptx::publish_barriers();
  }
  __syncthreads();

  float sums[kN / 2];  // 64 x 128 by a warpgroup
  const int depth = (k + kK - 1) / kK;
  for (int stage = 0; stage < depth; ++stage) {
    if (threadIdx.x == 0) {
      // Beyond the matrix come zeros, and they count as bytes.
      ptx::arrive_expecting(full, kBytesA + kBytesB);
      ptx::load_tile(left, a_map, top, stage * kK, full);
      for (int panel = 0; panel < kN / 64; ++panel) {
        ptx::load_tile(right + panel * kPanel, b_map, stage * kK, side + panel * 64, full);
      }
    }
    ptx::wait_for(full, stage % 2);
    ptx::fence_products();
#pragma unroll
    for (int i = 0; i < kK / 16; ++i) {  // 16 deep at a time
      // Rows of a are 128 bytes, eight of them 1,024; b is read the other way, 64 columns a panel.
      ptx::multiply_async<kN, bfloat16, bfloat16, false, true>(
          sums, ptx::descriptor(left + group * 64 * 128 + i * 32, 16, 1024, true),
          ptx::descriptor(right + i * 16 * 128, kPanel, 1024, true), stage + i);
    }
    ptx::commit_products();
    ptx::wait_for_products<0>();
    __syncthreads();  // the tiles have been read: the next ones may come
  }
  ptx::settle(sums);

  unsigned int* const pairs = reinterpret_cast<unsigned int*>(c);
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {  // 8 columns, of two rows each
    const int row = top + warp * 16 + lane / 4 + i % 2 * 8;
    const int column = side + i / 2 * 8 + lane % 4 * 2;
    if (row < m && column < n) {
      pairs[(static_cast<size_t>(row) * n + column) / 2] =
          ptx::pack_bf16(sums[2 * i], sums[2 * i + 1]);
    }
  }
}
