// Products of operands that stream (streamed.cuh): forward and backward GEMMs, whose sums are added up over the
// warps, and updates.
#pragma once
#include "optimizers/step_functors.cuh"
#include "persistent/streamed_operands.cuh"

template <typename C>
struct StreamedProducts : StreamedOperands<C> {
  using Base = StreamedOperands<C>;
  using typename Base::Shape;
  using typename Base::Rule;
  using typename Base::Activation;
  using typename Base::Words;
  using Base::kTiles, Base::kPairs, Base::kEach, Base::kParts, Base::kPartFloats, Base::kBias;
  using Base::first_step, Base::begin_step, Base::has_steps, Base::owns, Base::bits, Base::low;

  // Sums of a warp. With few tiles a step's two eights have sums of their own, as each product waits for the last.
  static constexpr int kChains = kTiles < 4 ? 2 : 1;
  using Sums = float[kChains][kTiles][4];

  // Partial sums of a warp: a quad of each tile and lane. In every second tile, lanes 4 to 7 change places with
  // lanes 0 to 3 and so on, so that add_up has no bank conflicts.
  static __device__ __forceinline__ void store_sums(float* scratch, Sums& sums) {
    float4* const to = reinterpret_cast<float4*>(scratch + warp_index() * kPartFloats);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float (&sum)[4] = sums[0][m];
      if constexpr (kChains > 1) {
#pragma unroll
        for (int q = 0; q < 4; ++q) sum[q] += sums[1][m][q];
      }
      to[m * 32 + (lane_index() ^ m % 2 * 4)] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
  }

  // sums += the fragments of a step x two words of weights.
  static __device__ __forceinline__ void multiply(Sums& sums, const Words& a, unsigned int b0, unsigned int b1) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const unsigned int left[2] = {a[half][m / 2][m % 2 * 2], a[half][m / 2][m % 2 * 2 + 1]};
        ptx::multiply_half<bfloat16>(sums[half % kChains][m], left, half == 0 ? b0 : b1);
      }
    }
  }

  // The last layer's words of a step, matrices [4][lane] of eight outputs and eight inputs: of outputs 0 to 7, then
  // of the others. TRANSPOSED, the right operand of a backward GEMM.
  template <bool TRANSPOSED>
  static __device__ __forceinline__ uint4 load_last(const uint4* last, int step) {
    unsigned int w[4];
    ptx::load_matrices<TRANSPOSED>(w, ptx::shared_address(last + step * 32 + lane_index()));
    return make_uint4(w[0], w[1], w[2], w[3]);
  }

  // By this block's rows of a layer's weights, as words of bfloat16 [step][lane], or by all rows of the last layer.
  // SECOND: by its outputs beyond eight.
  template <bool SECOND, typename W>
  static __device__ __forceinline__ void multiply_words(const Words (&a)[kEach], const W* words, float* scratch) {
    if (!has_steps()) return;
    const int first = first_step(), begin = begin_step();
    Sums sums = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!owns(first + i, begin)) continue;
      if constexpr (sizeof(W) == sizeof(uint4)) {
        const uint4 w = load_last<false>(words, first + i);
        multiply(sums, a[i], SECOND ? w.z : w.x, SECOND ? w.w : w.y);
      } else {
        const W w = words[(first + i) * 32 + lane_index()];
        multiply(sums, a[i], w.x, w.y);
      }
    }
    store_sums(scratch, sums);
  }

  // By weights in float32, tiles of 16 of the inner dimension x 8: [step][lane], those from `begin` to `end`.
  template <int EACH>
  static __device__ __forceinline__ void multiply_tiles(const Words (&a)[EACH], int first, int begin, int end,
                                                        const float4* weights, float* scratch) {
    if (begin >= end) return;
    Sums sums = {};
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (first + i < begin || first + i >= end) continue;
      const float4 w = weights[(first + i) * 32 + lane_index()];
      multiply(sums, a[i], ptx::transpose_matrix(ptx::pack_bf16(w.x, w.y)),
               ptx::transpose_matrix(ptx::pack_bf16(w.z, w.w)));
    }
    store_sums(scratch, sums);
  }

  // The sums of the warps' partial sums: body(number, example, own feature, sum) of each element of this block's
  // quads by its number. All lanes of a warp call it, with 0 where the tile is padding.
  template <int PARTS, typename F>
  static __device__ __forceinline__ void add_up(const float* scratch, F body) {
    static_assert(kPairs * 256 <= Shape::kThreads, "a thread has one sum");
    if (warp_index() >= kPairs * 8) return;
    const int number = thread_index();
    const int place = number / 8 % 32, tile = number / 256 * 2 + number % 8 / 4, q = number % 4;
    const float* const from = scratch + (kTiles % 2 != 0 && tile >= kTiles ? 0 : tile * 128) +
                              (place ^ tile % 2 * 4) * 4 + q;
    constexpr int chains = smaller(PARTS, 4);
    float sums[chains];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      const float part = from[i * kPartFloats];
      sums[i % chains] = i < chains ? part : sums[i % chains] + part;
    }
#pragma unroll
    for (int i = 1; i < chains; ++i) sums[0] += sums[i];
    const bool padding = kTiles % 2 != 0 && tile >= kTiles;
    body(number, tile * 16 + place / 4 + q / 2 * 8, place % 4 * 2 + q % 2, padding ? 0.0f : sums[0]);
  }

  // Rounds a value to a bfloat16 whose lowest bit is 0, the flag bit's place. NaN stays what it is.
  static __device__ __forceinline__ float round_for_flag(float v) {
    const unsigned int found = bits(v);
    return v != v ? v : __uint_as_float((found + 0xffffu + (found >> 17 & 1u)) & 0xfffe0000u);
  }

  // Makes quads of the values of a warp, of elements from number - lane on. They go to `own`, and to the other
  // blocks unless `to` is null. Gradients that are published are kept for biases alone, other values ALWAYS.
  template <bool ALWAYS>
  static __device__ __forceinline__ void store_own(int number, float value, float4* own, float4* to,
                                                   unsigned int bit) {
    if (lane_index() % 8 == 6) value = round_for_flag(value);
    const unsigned int word = ptx::pack_bf16(value, __shfl_xor_sync(kFullWarp, value, 1));
    const int base = lane_index() & ~7;
    float4 quad;
    quad.x = __uint_as_float(__shfl_sync(kFullWarp, word, base));
    quad.y = __uint_as_float(__shfl_sync(kFullWarp, word, base + 2));
    quad.z = __uint_as_float(__shfl_sync(kFullWarp, word, base + 4));
    quad.w = __uint_as_float(__shfl_sync(kFullWarp, word, base + 6));
    if (lane_index() == base) {
      if (to != nullptr) ptx::store_flagged(to + number / 8, quad, bit);
      if (kBias || ALWAYS || to == nullptr) own[number / 8] = quad;
    }
  }

  template <int PARTS>
  static __device__ __forceinline__ void finish_forward(const float* scratch, const float* bias, float4* own,
                                                        float4* to, unsigned int bit) {
    add_up<PARTS>(scratch, [=](int number, int, int feature, float sum) {
      if constexpr (kBias) sum += bias[feature];
      const bool padding = kTiles % 2 != 0 && number / 256 == kPairs - 1 && number % 8 > 3;
      store_own<true>(number, padding ? 0.0f : Activation::apply(sum), own, to, bit);
    });
  }

  static __device__ __forceinline__ void finish_backward(const float* scratch, const float4* own_values,
                                                         float4* own, float4* to, unsigned int bit) {
    const unsigned short* const saved = reinterpret_cast<const unsigned short*>(own_values);
    add_up<kParts>(scratch, [=](int number, int, int, float sum) {
      const float value = Activation::backward(sum, low(saved[number]));
      store_own<false>(number, value, own, to, bit);
    });
  }

  // -- updates -----------------------------------------------------------------------------------------------
  static __device__ __forceinline__ float4 updated(float4 w, const float (&gradient)[4], const Rule& rule) {
    return make_float4(rule(w.x, gradient[0], nullptr), rule(w.y, gradient[1], nullptr),
                       rule(w.z, gradient[2], nullptr), rule(w.w, gradient[3], nullptr));
  }
  static __device__ __forceinline__ uint2 own_words(const float4* own, int tile) {
    return reinterpret_cast<const uint2*>(own)[(tile / 2 * 32 + lane_index()) * 2 + tile % 2];
  }

  // The update of the tiles of weights [step][lane] from `begin` to `end`: fragments transposed, times this
  // block's own 8 features. TRANSPOSED: they are already.
  template <bool TRANSPOSED = false, int EACH>
  static __device__ __forceinline__ void update(const Words (&a)[EACH], int first, int begin, int end,
                                                const float4* own, float4* weights, const Rule& rule) {
    if (begin >= end) return;
    unsigned int b[kTiles][2];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const uint2 words = own_words(own, m);
      b[m][0] = ptx::transpose_matrix(words.x), b[m][1] = ptx::transpose_matrix(words.y);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (first + i < begin || first + i >= end) continue;
      float gradient[4] = {};
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const unsigned int (&upper)[4] = a[i][0][m / 2], (&lower)[4] = a[i][1][m / 2];
        const int word = m % 2 * 2;
        if constexpr (TRANSPOSED) {
          const unsigned int left[4] = {upper[word], upper[word + 1], lower[word], lower[word + 1]};
          ptx::multiply<bfloat16>(gradient, left, b[m][0], b[m][1]);
        } else {
          const unsigned int left[4] = {
              ptx::transpose_matrix(upper[word]), ptx::transpose_matrix(lower[word]),
              ptx::transpose_matrix(upper[word + 1]), ptx::transpose_matrix(lower[word + 1])};
          ptx::multiply<bfloat16>(gradient, left, b[m][0], b[m][1]);
        }
      }
      float4* const w = weights + (first + i) * 32 + lane_index();
      *w = updated(*w, gradient, rule);
    }
  }

  // One warp: the biases of this block's features, from the gradients in `own`.
  static __device__ __forceinline__ void update_biases(const float4* own, float* bias, const Rule& rule) {
    const unsigned short* const values = reinterpret_cast<const unsigned short*>(own);
    const int feature = lane_index() / 4, part = lane_index() % 4;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs * 8; ++i) {
      const int at = (i / 8 * 32 + i % 8 * 4 + feature / 2) * 8 + part * 2 + feature % 2;
      sum += __uint_as_float(static_cast<unsigned int>(values[at]) << 16);
    }
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    if (part == 0) bias[feature] = rule(bias[feature], sum, nullptr);
  }
};
