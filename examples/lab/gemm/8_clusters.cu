// A product of matrices, step 8: blocks in clusters of two, one below the other, which need the same
// tile of b. Each asks for half of it, and the copy engine brings it to both (multicast).
// Learned: a third less is read from the L2 cache. What tells the other block that a tile has been
// read must publish nothing else: an arrival that fences all memory made this slower than step 6.
/* rawnn
arch = "sm_90a"
defines = {STAGES = 4, CLUSTER = 2, GROUP = 8}
grid = "min(sms // CLUSTER, cdiv(m, 128 * CLUSTER) * cdiv(n, 256)) * CLUSTER"
block = 384
cluster = "CLUSTER"
shared = "STAGES * 49152 + 34816"
maps = {a = [128, 64], b = [64, 64], c = [16, 64]}
reference = "a @ b"
shapes = {a = ["m", "k"], b = ["k", "n"], c = ["m", "n"]}
length = "k"
flops = "2 * m * n * k"
sizes = {m = "1..600", n = "8..600", k = "8..600"}
require = ["n % 8 == 0", "k % 8 == 0"]
sweep = {STAGES = [3, 4], CLUSTER = [1, 2], GROUP = [4, 8, 16]}
*/
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "device/cluster.cuh"
#include "device/convert.cuh"
#include "device/fences.cuh"
#include "device/shared.cuh"
#include "device/warpgroup.cuh"

constexpr int kM = 128, kN = 256, kK = 64;  // a block's tile of c, and how deep a stage is
constexpr int kBytesA = kM * kK * 2, kBytesB = kK * kN * 2, kStage = kBytesA + kBytesB;
constexpr int kPanel = kK * 64 * 2;  // 64 columns of b, 128 bytes a row
constexpr int kChunk = 16 * 64 * 2;  // what a warp stores at once

// Where a stage of the ring is in shared memory, and which turn of the ring it is.
struct Turn {
  int slot = 0, parity = 0;
  __device__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
};

// The tile at `index` of all: `GROUP` rows of tiles at a time, column by column, so that tiles which
// are computed at once share rows of a and columns of b in the L2 cache.
struct Tiles {
  int rows, columns;
  __device__ int2 at(int index) const {
    const int group = index / (GROUP * columns), inside = index % (GROUP * columns);
    const int height = min(GROUP, rows - group * GROUP);
    return make_int2(group * GROUP + inside % height, inside / height);
  }
};

__global__ void __launch_bounds__(384, 1)
clusters(const bfloat16* a, const bfloat16* b, bfloat16* c, int m, int n, int k,
         const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
         const __grid_constant__ TensorMap c_map) {
  const unsigned int ring = ptx::shared_address(ptx::dynamic_shared<unsigned char, 1024>());
  const unsigned int chunks = ring + STAGES * kStage;
  const unsigned int full = chunks + 16 * kChunk, empty = full + STAGES * 8;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(ptx::cluster_rank());
  const Tiles tiles{(m + kM * CLUSTER - 1) / (kM * CLUSTER), (n + kN - 1) / kN};
  const int first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
  const int count = tiles.rows * tiles.columns, depth = (k + kK - 1) / kK;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < STAGES; ++slot) {
      ptx::init_barrier(full + slot * 8, 1);
      ptx::init_barrier(empty + slot * 8, 2 * CLUSTER);  // two warpgroups of each block
    }
    ptx::publish_barriers();
  }
  ptx::cluster_barrier();

  Turn turn;
  if (group == 2) {  // the producer: one thread asks for all that the block needs
    ptx::give_registers<40>();
    if (threadIdx.x == 256) {
      for (int index = first; index < count; index += step) {
        const int2 tile = tiles.at(index);
        const int row = (tile.x * CLUSTER + rank) * kM, column = tile.y * kN;
        for (int stage = 0; stage < depth; ++stage, turn.next()) {
          const unsigned int slot = ring + turn.slot * kStage, barrier = full + turn.slot * 8;
          ptx::wait_for(empty + turn.slot * 8, turn.parity ^ 1);
          ptx::arrive_expecting(barrier, kStage);
          ptx::load_tile(slot, a_map, row, stage * kK, barrier);
          for (int panel = rank * (4 / CLUSTER); panel < (rank + 1) * (4 / CLUSTER); ++panel) {
            ptx::load_tile_to_blocks(slot + kBytesA + panel * kPanel, b_map, stage * kK,
                                     column + panel * 64, barrier, (1 << CLUSTER) - 1);
          }
        }
      }
    }
    __syncwarp();
  } else {  // two warpgroups multiply, 64 rows each
    ptx::take_registers<232>();
    const unsigned int mine = chunks + warp * 2 * kChunk;  // two places, so that one can be filled
    float sums[kN / 2];
    for (int index = first; index < count; index += step) {
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
        if (stage > 0 && threadIdx.x % 128 < CLUSTER) {
          ptx::arrive_remote_having_read(ptx::in_block(
              empty + (turn.slot + STAGES - 1) % STAGES * 8, threadIdx.x % 128));
        }
        turn.next();
      }
      ptx::wait_for_products<0>();
      ptx::settle(sums);
      if (threadIdx.x % 128 < CLUSTER) {
        ptx::arrive_remote_having_read(
            ptx::in_block(empty + (turn.slot + STAGES - 1) % STAGES * 8, threadIdx.x % 128));
      }

      // A warp has 16 rows of the result. It stores 64 columns at a time by way of shared memory,
      // while the producer is at the next tile.
      const int2 tile = tiles.at(index);
      const int row = (tile.x * CLUSTER + rank) * kM + warp * 16;
#pragma unroll
      for (int chunk = 0; chunk < kN / 64; ++chunk) {
        const unsigned int place = mine + chunk % 2 * kChunk;
        if (lane == 0) ptx::wait_for_reads<1>();  // this place has been read
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16; ++i) {  // 8 columns, of two rows each
          const int at = (chunk * 16 + i) * 2, block = i / 2, line = lane / 4 + i % 2 * 8;
          ptx::store_shared(place + line * 128 + (block ^ line % 8) * 16 + lane % 4 * 4,
                            {ptx::pack_bf16(sums[at], sums[at + 1])});
        }
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
          ptx::store_tile(c_map, row, tile.y * kN + chunk * 64, place);
          ptx::commit_stores();
        }
      }
    }
    if (lane == 0) ptx::wait_for_stores();
    __syncwarp();
  }
  ptx::cluster_barrier();  // nobody leaves while others may still arrive at its barriers
}
