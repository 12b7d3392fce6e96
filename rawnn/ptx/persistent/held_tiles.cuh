// Weight gradients whose tiles belong to one warp for a whole launch. What is kept of them then lies in the
// warp's registers: the optimizer state of the weights (STATE), and the sums over the micro-batches of a step,
// of which there are MICRO_BATCHES. So shared memory is left to weights and activations.
#pragma once
#include "persistent/gemm.cuh"
#include "persistent/weights.cuh"

// The tiles of a GEMM whose first task is that of warp FIRST.
template <typename GEMM, typename RULE, bool STATE, int MICRO_BATCHES, unsigned int FIRST>
struct HeldTiles {
  static constexpr unsigned int kWarps = GEMM::kWarps;
  static constexpr int kRounds = ceil_div(GEMM::kTasks, kWarps);
  static constexpr int kAllRounds = ceil_div(GEMM::kAllTasks, kWarps);
  static constexpr int kDown = GEMM::kTilesDown;
  static constexpr int kAcross = GEMM::kTilesAcross;

  TileState<RULE, false> state[STATE ? kRounds : 1][kDown][kAcross];
  float sum[MICRO_BATCHES > 1 ? kRounds : 1][kDown][kAcross][4];

  // The warp's task of a round; and whether there is one, which the compiler knows of most rounds.
  static __device__ __forceinline__ unsigned int task_of(int round) {
    unsigned int warp = warp_index();
    if constexpr (FIRST > 0) warp = warp < FIRST ? warp - FIRST + kWarps : warp - FIRST;
    return warp + round * kWarps;
  }
  static __device__ __forceinline__ bool is_task(int round, unsigned int task) {
    return (round + 1) * kWarps <= GEMM::kTasks || (round < kRounds && task < GEMM::kTasks);
  }
  static __device__ __forceinline__ bool is_tile(int mt, int nt) {
    return (GEMM::kRows % kDown == 0 || mt < GEMM::kRows) &&
           (GEMM::kColumns % kAcross == 0 || nt < GEMM::kColumns);
  }

  // body(state, input, output, q) for the lane's elements that the shard has.
  template <typename F>
  __device__ __forceinline__ void for_elements(const Shard& shard, F body) {
    const int lane = lane_index();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const unsigned int task = task_of(r);
      if (is_task(r, task)) {
        const int down = static_cast<int>(task % GEMM::kDown) * kDown;
        const int across = static_cast<int>(task / GEMM::kDown) * kAcross;
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
#pragma unroll
          for (int j = 0; j < kAcross; ++j) {
#pragma unroll
            for (int q = 0; q < 4; ++q) {
              const int in = (down + i) * 16 + lane / 4 + q / 2 * 8;
              const int out = (across + j) * 8 + lane % 4 * 2 + q % 2;
              if (in < shard.ins && out < shard.outs) body(state[r][i][j], in, out, q);
            }
          }
        }
      }
    }
  }

  // Begins a launch: all is zero until load() has read the state.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
          if constexpr (STATE) state[r][i][j] = {};
#pragma unroll
          for (int q = 0; q < 4; ++q) sum[MICRO_BATCHES > 1 ? r : 0][i][j][q] = 0.0f;
        }
      }
    }
  }
  // One of the optimizer's tensors, a matrix [outputs, inputs] with rows `ld` apart.
  template <int WHICH>
  __device__ __forceinline__ void load(const float* __restrict__ from, int ld, const Shard& shard) {
    for_elements(shard, [=](TileState<RULE, false>& kept, int in, int out, int q) {
      kept.of[WHICH][q] = from[static_cast<long long>(shard.out + out) * ld + shard.in + in];
    });
  }
  template <int WHICH>
  __device__ __forceinline__ void store(float* __restrict__ to, int ld, const Shard& shard) {
    for_elements(shard, [=](TileState<RULE, false>& kept, int in, int out, int q) {
      to[static_cast<long long>(shard.out + out) * ld + shard.in + in] = kept.of[WHICH][q];
    });
  }

  // The sums of the biases' gradient over micro-batches lie in shared memory; a lane reads its own alone.
  template <typename FINISH>
  struct BiasSums {
    const FINISH& finish;
    float* earlier;
    int micro_batch;

    __device__ __forceinline__ void sums(int nt, float first, float second, bool there) const {
      if constexpr (MICRO_BATCHES > 1) {
        float2* const at = reinterpret_cast<float2*>(earlier + nt * 8 + lane_index() % 4 * 2);
        if (there && micro_batch > 0) first += at->x, second += at->y;
        if (micro_batch < MICRO_BATCHES - 1) {
          if (there) *at = make_float2(first, second);
          return;
        }
      }
      finish.sums(nt, first, second, there);
    }
  };

  // The last micro-batch of a step updates the weights.
  template <typename FINISH>
  __device__ __forceinline__ void run(const typename GEMM::LeftType* left,
                                      const typename GEMM::RightType* right, const FINISH& finish,
                                      int micro_batch, float* bias_sums) {
    const bool last = MICRO_BATCHES == 1 || micro_batch == MICRO_BATCHES - 1;
#pragma unroll
    for (int r = 0; r < kAllRounds; ++r) {
      const unsigned int task = task_of(r);
      if (is_task(r, task)) {
        const int down = static_cast<int>(task % GEMM::kDown) * kDown;
        const int across = static_cast<int>(task / GEMM::kDown) * kAcross;
        typename FINISH::Early early[STATE ? 1 : kDown][STATE ? 1 : kAcross];
        const auto load_row = [&](int i) {
#pragma unroll
          for (int j = 0; j < kAcross; ++j) {
            early[i][j] = {};
            if (last) {
              early[i][j] =
                  finish.early(GEMM::kRows % kDown ? min(down + i, GEMM::kRows - 1) : down + i,
                               GEMM::kColumns % kAcross ? min(across + j, GEMM::kColumns - 1) : across + j);
            }
          }
        };
        const auto load = [&]() {
#pragma unroll
          for (int i = 0; i < kDown; ++i) load_row(i);
        };
        if constexpr (!STATE && !kIsLate<FINISH> && !kIsByRow<FINISH>) load();
        GEMM p;
        p.begin_task(left, right, down, across);
        p.template add_part<true>(0);
        if constexpr (!STATE && kIsLate<FINISH>) load();
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
          if constexpr (!STATE && kIsByRow<FINISH>) load_row(i);
          // No load of weights waits for the stores of the tiles before.
          float weights[STATE ? kAcross : 1][4];
          if constexpr (STATE) {
#pragma unroll
            for (int j = 0; j < kAcross; ++j) {
              if (last && is_tile(down + i, across + j)) finish.read(weights[j], down + i, across + j);
            }
          }
#pragma unroll
          for (int j = 0; j < kAcross; ++j) {
            float total[4];
            p.total_of(total, i, j);
            if constexpr (MICRO_BATCHES > 1) {
#pragma unroll
              for (int q = 0; q < 4; ++q) {
                float& earlier = sum[r < kRounds ? r : 0][i][j][q];
                total[q] += earlier;
                earlier = last ? 0.0f : total[q];
              }
            }
            if (last && is_tile(down + i, across + j)) {
              if constexpr (STATE) {
                float next[4];
                finish.update(state[r < kRounds ? r : 0][i][j], down + i, across + j, total,
                              weights[STATE ? j : 0], next);
              } else {
                finish.store(0, down + i, across + j, total, early[i][j]);
              }
            }
          }
        }
      } else if (task >= GEMM::kTasks && task < GEMM::kAllTasks) {
        GEMM::sum_rows(right, static_cast<int>(task - GEMM::kTasks) * kAcross,
                       BiasSums<FINISH>{finish, bias_sums, micro_batch});
      }
    }
  }
};
