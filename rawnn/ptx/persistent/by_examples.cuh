// The step of one layer whose blocks share the inputs, and the examples of the softmax: GEMMs, softmax and update.
//
// Products are exact (byte_planes.cuh), and their sums are scaled once. A tensor core truncates what it adds,
// which is once for each 16 products.
//
//   inputs         [example][LDX]                  bfloat16
//   weights        [input][Rows::kPitch]           bfloat16, the planes of all outputs
//   gradients      [example][Rows::kPitch]         the same
//
// A softmax has one exchange on either side: each block gets the partial sums of all outputs of its own
// examples, and publishes their gradients.
// Limit: latency. A step is two exchanges, two barriers of a block and some hundred cycles of tensor cores.
#pragma once
#include "persistent/byte_planes.cuh"
#include "persistent/exchange.cuh"
#include "persistent/loss.cuh"
#include "persistent/update.cuh"

namespace by_examples {

// Outputs x examples over INPUTS, a multiple of 16, by the first WARPS warps. A task has TILES tiles of 8 examples,
// an even number, which share the weights that it loads: loads from shared memory are what takes longest. TO
// scatters the examples.
template <typename SHAPE, int OUTPUTS, int WARPS, int TILES, int INPUTS, int LDX, typename TO, typename T>
__device__ __forceinline__ void forward(const T& transport, const Half* planes, const Half* x, float scale) {
  using Of = Rows<OUTPUTS>;
  constexpr int tiles = SHAPE::kColumns / 8;
  constexpr int tasks = ceil_div(tiles, TILES);
  if (warp_index() >= WARPS) return;
  const int lane = lane_index();
  const unsigned int left =
      ptx::shared_address(planes + (lane / 16 * 8 + lane % 8) * Of::kPitch + lane / 8 % 2 * 8);
#pragma unroll 1
  for (int task = warp_index(); task < tasks; task += WARPS) {
    unsigned int right[TILES / 2];
#pragma unroll
    for (int j = 0; j < TILES / 2; ++j) {
      const int tile = min(task * TILES + 2 * j + lane / 16, tiles - 1);
      right[j] = ptx::shared_address(x + (tile * 8 + lane % 8) * LDX + lane / 8 % 2 * 8);
    }
    float sums[TILES][Of::kTiles][4] = {};
#pragma unroll
    for (int k = 0; k < INPUTS / 16; ++k) {
      unsigned int a[Of::kTiles][4], b[TILES / 2][4];
#pragma unroll
      for (int j = 0; j < TILES / 2; ++j) ptx::load_matrices<false>(b[j], right[j] + k * 32);
#pragma unroll
      for (int i = 0; i < Of::kTiles; ++i) {
        ptx::load_matrices<true>(a[i], left + (k * 16 * Of::kPitch + i * 16) * 2);
      }
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
#pragma unroll
        for (int i = 0; i < Of::kTiles; ++i) {
          ptx::multiply<bfloat16>(sums[j][i], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
    // All tiles' shuffles are under way at once: so no branch stands between them.
    const bool odd = lane % 2 != 0;
    float4 v[TILES];
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      float total[4];
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        if constexpr (Of::kPacked) {  // rows g, 8 + g, 16 + g; and 24 + g of two outputs, planes two rows apart
          total[q] = sums[j][0][q] + (sums[j][0][2 + q] + sums[j][1][q]);
          const float first = sums[j][1][2 + q];
          total[2 + q] = first + (__shfl_down_sync(kFullWarp, first, 8) + __shfl_down_sync(kFullWarp, first, 16));
        } else {
          total[q] = sums[j][0][q] + (sums[j][1][q] + sums[j][2][q]);
          total[2 + q] = sums[j][0][2 + q] + (sums[j][1][2 + q] + sums[j][2][2 + q]);
        }
        total[q] *= scale, total[2 + q] *= scale;
      }
      // Neighbours exchange halves, so that each has four examples of an output (quads() in epilogue.cuh).
      const float a = __shfl_xor_sync(kFullWarp, odd ? total[0] : total[2], 1);
      const float b = __shfl_xor_sync(kFullWarp, odd ? total[1] : total[3], 1);
      v[j] = odd ? make_float4(a, b, total[2], total[3]) : make_float4(total[0], total[1], a, b);
    }
    const int output = lane / 4 + (odd ? 8 : 0);
    if (output < OUTPUTS) {
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
        const int example = (task * TILES + j) * 8 + lane % 4 / 2 * 4;
        if (example < SHAPE::kSent) send_row<TO>(transport, output, example, v[j]);
      }
    }
    if constexpr (tasks <= WARPS) break;
  }
}

// The softmax of this block's examples, by the first WARPS warps, which have eight each. FROM is the exchange that
// brought `parts`, the partial sums of all blocks, and TO publishes the gradients, [example][fours of outputs].
// Four lanes add up a fourth of an example's parts each; then all four have all outputs in registers.
template <typename SHAPE, int OUTPUTS, int WARPS, typename FROM, typename TO, typename T>
__device__ __forceinline__ void softmax(const T& transport, const float* parts, const float* biases,
                                        const int* labels, int present, float share, Tally* tallies,
                                        int tallied) {
  using Of = Rows<OUTPUTS>;
  constexpr int own = FROM::kShare;
  constexpr int rounds = ceil_div(SHAPE::kTpSize, 4);
  // A warp without examples reads nothing: nobody waits until it has.
  const int first = transport.rank * own + warp_index() * 8;
  if (warp_index() >= WARPS || first >= SHAPE::kSent) return;
  const int lane = lane_index();
  const int of_block = warp_index() * 8 + lane % 8;
  const int group = lane / 8;
  const int example = first + lane % 8;
  const bool mine = of_block < own && example < SHAPE::kSent;
  const bool there = mine && example < present;
  const int label = there ? labels[example] : -1;
  float v[Of::kOf4 * 4] = {};
  if (mine) {
    const float* const from = parts + group * (OUTPUTS * own) + of_block;
#pragma unroll
    for (int j = 0; j < rounds; ++j) {
      if (SHAPE::kTpSize % 4 == 0 || j * 4 + group < SHAPE::kTpSize) {
#pragma unroll
        for (int m = 0; m < OUTPUTS; ++m) {
          const float part = from[(j * 4 * OUTPUTS + m) * own];
          v[m] = j == 0 ? part : v[m] + part;
        }
      }
    }
  }
#pragma unroll
  for (int step = 8; step < 32; step *= 2) {
#pragma unroll
    for (int m = 0; m < OUTPUTS; ++m) v[m] += __shfl_xor_sync(kFullWarp, v[m], step);
  }
  float largest = -infinity();
#pragma unroll
  for (int m = 0; m < OUTPUTS; ++m) {
    if (biases != nullptr) v[m] += biases[m];
    largest = fmaxf(largest, v[m]);
  }
  float power[Of::kOf4 * 4] = {};
  float total = 0.0f;
#pragma unroll
  for (int m = 0; m < OUTPUTS; ++m) {
    power[m] = exp_below_zero(v[m] - largest);
    total += power[m];
  }
  const float inverse = ptx::approximate_inverse(total);
  float slope[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int output = group * 4 + i;
    float own_power = power[i];
#pragma unroll
    for (int q = 1; q < Of::kOf4; ++q) own_power = group == q ? power[q * 4 + i] : own_power;
    slope[i] = (own_power * inverse - (output == label ? 1.0f : 0.0f)) * share;
    if (!there || output >= OUTPUTS) slope[i] = 0.0f;
  }
  __syncwarp();  // all lanes have read what the next step overwrites
  if (mine && group < Of::kOf4) {
    transport.template publish<TO>(example * (Of::kOf4 * 4) + group * 4,
                                   make_float4(slope[0], slope[1], slope[2], slope[3]));
  }
  if (mine && group == 0 && example < tallied) {
    const bool is = label >= 0 && label < OUTPUTS;
    bool ahead = false;
    float of_label = 0.0f, power_of_label = not_a_number();
#pragma unroll
    for (int m = 0; m < OUTPUTS; ++m) {
      ahead |= v[m] == largest && m < label;
      if (m == label) of_label = v[m], power_of_label = power[m];
    }
    // Where all probabilities are NaN the first maximum is at 0.
    const bool right = total != total ? label == 0 : is && of_label == largest && !ahead;
    const float seen_as = probability_or_log(power_of_label * inverse, largest - of_label, total);
    const Tally seen = {seen_as, right ? 1 : 0};
    tallies[example] = there ? seen : kAbsent;
  }
}

// Makes planes of all examples' gradients, [example][fours of outputs].
template <typename SHAPE, int OUTPUTS>
__device__ __forceinline__ void store_gradients_of(Half* planes, const float* received) {
  using Of = Rows<OUTPUTS>;
  constexpr int all = SHAPE::kSent * Of::kOf4;
#pragma unroll 1
  for (int i = thread_index(); i < all; i += SHAPE::kThreads) {
    const float4 v = reinterpret_cast<const float4*>(received)[i];
    Half* const row = planes + i / Of::kOf4 * Of::kPitch;
    const int output = i % Of::kOf4 * 4;
    store_planes<OUTPUTS>(row, output, v.x, v.y);
    store_planes<OUTPUTS>(row, output + 2, v.z, v.w);
    if constexpr (all <= SHAPE::kThreads) break;
  }
}

// Inputs x outputs over the examples, and the update of weights and their planes: a task is 16 inputs. Other warps
// do the same for biases, whose gradients are the sums of `received`, [example][fours of outputs].
template <typename SHAPE, int OUTPUTS, int M16, int K16, int LDX, bool BIAS, typename UPDATE>
__device__ __forceinline__ void update(const Half* x, const Half* gradients, float scale, const UPDATE& finish,
                                       Half* planes, const float* received) {
  using Of = Rows<OUTPUTS>;
  constexpr int N8 = ceil_div(OUTPUTS, 8);
  constexpr int tasks = M16 + (BIAS ? ceil_div(OUTPUTS, 2) : 0);
  constexpr int chains = K16 > 1 ? 2 : 1;  // of a tile, as a product waits for the one before
  const int lane = lane_index();
#pragma unroll 1
  for (int task = warp_index(); task < tasks; task += SHAPE::kThreads / 32) {
    if (task < M16) {
      typename UPDATE::Early early[N8];
#pragma unroll
      for (int n = 0; n < N8; ++n) early[n] = finish.early(task, n);
      const unsigned int left =
          ptx::shared_address(x + (lane / 16 * 8 + lane % 8) * LDX + task * 16 + lane / 8 % 2 * 8);
      const unsigned int right =
          ptx::shared_address(gradients + (lane / 8 % 2 * 8 + lane % 8) * Of::kPitch + lane / 16 * 8);
      float sums[chains][Of::kTiles * 2][4] = {};
#pragma unroll 8
      for (int k = 0; k < K16; ++k) {
        unsigned int a[4], b[Of::kTiles][4];
        ptx::load_matrices<true>(a, left + k * 16 * LDX * 2);
#pragma unroll
        for (int i = 0; i < Of::kTiles; ++i) {
          ptx::load_matrices<true>(b[i], right + (k * 16 * Of::kPitch + i * 16) * 2);
        }
#pragma unroll
        for (int n = 0; n < Of::kTiles * 2; ++n) {
          ptx::multiply<bfloat16>(sums[k % chains][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int n = 0; n < Of::kTiles * 2; ++n) {
#pragma unroll
        for (int q = 0; q < 4; ++q) sums[0][n][q] += chains > 1 ? sums[chains - 1][n][q] : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < N8; ++n) {
        float total[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          if constexpr (!Of::kPacked) {
            total[q] = sums[0][n][q] + (sums[0][2 + n][q] + sums[0][4 + n][q]);
          } else if (n == 0) {
            total[q] = sums[0][0][q] + (sums[0][1][q] + sums[0][2][q]);
          } else {  // two outputs, whose planes are two columns apart
            const float first = sums[0][3][q];
            total[q] = first + (__shfl_down_sync(kFullWarp, first, 1) + __shfl_down_sync(kFullWarp, first, 2));
            if (lane % 4 != 0) total[q] = 0.0f;
          }
          total[q] *= scale;
        }
        float w[4];
        finish.store(0, task, n, total, early[n], w);
        Half* const row = planes + (task * 16 + lane / 4) * Of::kPitch;
        const int output = n * 8 + lane % 4 * 2;
        store_planes<OUTPUTS>(row, output, w[0], w[1]);
        store_planes<OUTPUTS>(row + 8 * Of::kPitch, output, w[2], w[3]);
      }
    } else {
      const int first = (task - M16) * 2;
      float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < ceil_div(SHAPE::kSent, 32); ++i) {
        if (SHAPE::kSent % 32 == 0 || i * 32 + lane < SHAPE::kSent) {
          add_to(sum, *reinterpret_cast<const float2*>(received + (i * 32 + lane) * (Of::kOf4 * 4) + first));
        }
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        sum.x += __shfl_xor_sync(kFullWarp, sum.x, step);
        sum.y += __shfl_xor_sync(kFullWarp, sum.y, step);
      }
      finish.sums(first / 8, sum.x, sum.y, lane == first % 8 / 2);
    }
    if constexpr (tasks <= SHAPE::kThreads / 32) break;
  }
}

}  // namespace by_examples
