// A product of matrices, step 6: a ring of stages in shared memory. One thread, the producer, asks for
// tiles as soon as there is room; two warpgroups take them. Tiles of c are 128 x 256.
// Learned: products never wait for a tile to be asked for. The producer gives its registers to those
// who multiply, who hold 128 sums each: a tile twice as wide reads a quarter less for each product.
/* rawnn
arch = "sm_90a"
defines = {STAGES = 4}
grid = ["cdiv(n, 256)", "cdiv(m, 128)"]
block = 384
shared = "STAGES * 49152 + 1024"
maps = {a = [128, 64], b = [64, 64]}
reference = "a @ b"
shapes = {a = ["m", "k"], b = ["k", "n"], c = ["m", "n"]}
length = "k"
flops = "2 * m * n * k"
sizes = {m = "1..600", n = "8..600", k = "8..600"}
require = ["n % 8 == 0", "k % 8 == 0"]
sweep = {STAGES = [2, 3, 4]}
*/
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "device/convert.cuh"
#include "device/shared.cuh"
#include "device/warpgroup.cuh"

constexpr int kM = 128, kN = 256, kK = 64;  // a block's tile of c, and how deep a stage is
constexpr int kBytesA = kM * kK * 2, kBytesB = kK * kN * 2, kStage = kBytesA + kBytesB;
constexpr int kPanel = kK * 64 * 2;  // 64 columns of b, 128 bytes a row

// A place in the ring, and the parity of the time that it is filled.
struct Turn {
  int slot = 0, parity = 0;
  __device__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
};

__global__ void __launch_bounds__(384, 1)
pipeline(const bfloat16* a, const bfloat16* b, bfloat16* c, int m, int n, int k,
         const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map) {
  const unsigned int ring = ptx::shared_address(ptx::dynamic_shared<unsigned char, 1024>());
  const unsigned int full = ring + STAGES * kStage, empty = full + STAGES * 8;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int top = blockIdx.y * kM, side = blockIdx.x * kN, depth = (k + kK - 1) / kK;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < STAGES; ++slot) {
      ptx::init_barrier(full + slot * 8, 1);
      ptx::init_barrier(empty + slot * 8, 2);  // both warpgroups have read it
    }
    ptx::publish_barriers();
  }
  __syncthreads();

  Turn turn;
  if (group == 2) {
    ptx::give_registers<40>();
    if (threadIdx.x == 256) {
      for (int stage = 0; stage < depth; ++stage, turn.next()) {
        const unsigned int slot = ring + turn.slot * kStage, barrier = full + turn.slot * 8;
        ptx::wait_for(empty + turn.slot * 8, turn.parity ^ 1);  // at first it is empty
        ptx::arrive_expecting(barrier, kStage);
        ptx::load_tile(slot, a_map, top, stage * kK, barrier);
        for (int panel = 0; panel < kN / 64; ++panel) {
          ptx::load_tile(slot + kBytesA + panel * kPanel, b_map, stage * kK, side + panel * 64,
                         barrier);
        }
      }
    }
  } else {
    ptx::take_registers<232>();
    float sums[kN / 2];  // 64 x 256 by a warpgroup
    for (int stage = 0; stage < depth; ++stage) {
      const unsigned int left = ring + turn.slot * kStage + group * 64 * 128;
      const unsigned int right = ring + turn.slot * kStage + kBytesA;
      ptx::wait_for(full + turn.slot * 8, turn.parity);
      ptx::fence_products();
#pragma unroll
      for (int i = 0; i < kK / 16; ++i) {
        ptx::multiply_async<kN, bfloat16, bfloat16, false, true>(
            sums, ptx::descriptor(left + i * 32, 16, 1024, true),
            ptx::descriptor(right + i * 16 * 128, kPanel, 1024, true), stage + i);
      }
      ptx::commit_products();
      ptx::wait_for_products<1>();  // those of the stage before are done: its place is free
      if (stage > 0 && threadIdx.x % 128 == 0) {
        ptx::arrive(empty + (turn.slot + STAGES - 1) % STAGES * 8);
      }
      turn.next();
    }
    ptx::wait_for_products<0>();
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
}
