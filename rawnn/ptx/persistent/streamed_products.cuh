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
  using Base::kTiles, Base::kPairs, Base::kSteps, Base::kEach, Base::kParts, Base::kPartFloats, Base::kBias;
  using Base::first_step, Base::bits, Base::low, Base::at;

  // Partial sums of a warp: a quad of each tile and lane. In every second tile, lanes 4 to 7 change places with
  // lanes 0 to 3 and so on, so that add_up has no bank conflicts.
  static __device__ __forceinline__ void store_sums(float* scratch, const float (&sums)[kTiles][4]) {
    float4* const to = reinterpret_cast<float4*>(scratch + warp_index() * kPartFloats);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      to[m * 32 + (lane_index() ^ m % 2 * 4)] = make_float4(sums[m][0], sums[m][1], sums[m][2], sums[m][3]);
    }
  }

  // By this block's rows of a layer's weights, as words of bfloat16 [step][lane]. SECOND: words 2 and 3.
  template <bool SECOND, typename W>
  static __device__ __forceinline__ void multiply_words(const Words (&a)[kEach], const W* words, float* scratch) {
    const int first = first_step();
    if (first >= kSteps) return;
    float sums[kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (first + i >= kSteps) break;
      const W w = words[(first + i) * 32 + lane_index()];
      unsigned int b0 = w.x, b1 = w.y;
      if constexpr (SECOND) b0 = w.z, b1 = w.w;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) ptx::multiply<bfloat16>(sums[m], a[i][m], b0, b1);
    }
    store_sums(scratch, sums);
  }

  // By weights in float32, tiles of 16 of the inner dimension x 8: [step][lane].
  template <int EACH>
  static __device__ __forceinline__ void multiply_tiles(const Words (&a)[EACH], int first, int steps,
                                                        const float4* weights, float* scratch) {
    if (first >= steps) return;
    float sums[kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (first + i >= steps) break;
      const float4 w = weights[(first + i) * 32 + lane_index()];
      const unsigned int b0 = ptx::transpose_matrix(ptx::pack_bf16(w.x, w.y));
      const unsigned int b1 = ptx::transpose_matrix(ptx::pack_bf16(w.z, w.w));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) ptx::multiply<bfloat16>(sums[m], a[i][m], b0, b1);
    }
    store_sums(scratch, sums);
  }

  // The sums of the warps' partial sums: body(number, example, own feature, sum) of each element of this block's
  // quads by its number. All lanes of a warp call it, with 0 where the tile is padding.
  template <int PARTS, typename F>
  static __device__ __forceinline__ void add_up(const float* scratch, F body) {
    constexpr int rounds = ceil_div(kPairs * 256, Shape::kThreads);
    float sums[rounds][PARTS];
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      const int e = thread_index() + round * Shape::kThreads;
      const int tile = e / 256 * 2 + e % 8 / 4;
      const float* const from = scratch + tile * 128 + (e / 8 % 32 ^ tile % 2 * 4) * 4 + e % 4;
#pragma unroll
      for (int i = 0; i < PARTS; ++i) {
        sums[round][i] = e < kPairs * 256 && tile < kTiles ? from[i * kPartFloats] : 0.0f;
      }
    }
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      const int e = thread_index() + round * Shape::kThreads;
      const int place = e / 8 % 32, q = e % 4, tile = e / 256 * 2 + e % 8 / 4;
      float sum = sums[round][0];
#pragma unroll
      for (int i = 1; i < PARTS; ++i) sum += sums[round][i];
      if (e < kPairs * 256) body(e, tile * 16 + place / 4 + q / 2 * 8, place % 4 * 2 + q % 2, sum);
    }
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

  // The update of tiles of weights [step][lane]: fragments transposed, times this block's own 8 features.
  template <int EACH>
  static __device__ __forceinline__ void update(const Words (&a)[EACH], int first, int steps, const float4* own,
                                                float4* weights, const Rule& rule) {
    if (first >= steps) return;
    unsigned int b[kTiles][2];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const uint2 words = own_words(own, m);
      b[m][0] = ptx::transpose_matrix(words.x), b[m][1] = ptx::transpose_matrix(words.y);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (first + i >= steps) break;
      float gradient[4] = {};
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const unsigned int left[4] = {ptx::transpose_matrix(a[i][m][0]), ptx::transpose_matrix(a[i][m][2]),
                                      ptx::transpose_matrix(a[i][m][1]), ptx::transpose_matrix(a[i][m][3])};
        ptx::multiply<bfloat16>(gradient, left, b[m][0], b[m][1]);
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
