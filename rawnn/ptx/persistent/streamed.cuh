// A step whose operands stream from L2 into registers, for hidden layers of one width, one group of blocks and
// bfloat16. A block owns 8 features of each hidden boundary. It keeps no activations of the others: a warp
// loads the fragments of its share of the inner dimension as they arrive, multiplies them, and the warps'
// partial sums are added up in shared memory. So an exchange and its GEMM are one phase.
//
// Weights. The first layer's lie by outputs, [own 8 outputs, inputs], those of all other layers by inputs,
// [outputs, own 8 inputs]. So a backward GEMM needs no sums of other blocks, and its weight gradient has the
// gathered operand in registers already: it runs while what the block published is on its way. A forward GEMM
// needs [own 8 outputs, all inputs]: as bfloat16, which the owners send at the end of a step.
//
// Fragments. Tile m has the examples 16 m to 16 m + 15. A lane (g, t), g = lane / 4 and t = lane % 4, of a step
// of 16 features has the words of products.cuh: A[g][2t], A[g + 8][2t], A[g][2t + 8], A[g + 8][2t + 8]. The
// owner of 8 features publishes quads: words 0 and 1 (or 2 and 3) of two tiles, for each lane. A quad carries
// a flag bit, the lowest bit of one of its eight bfloat16.
//
// Reuse: a gathered boundary alternates between two buffers. New weights have one: a block sends those of a
// step after it has received values that each other block sent after it had read those of the step before.
#pragma once
#include "persistent/streamed_products.cuh"
#include "persistent/streamed_weights.cuh"

template <typename C>
struct Streamed : StreamedProducts<C> {
  using Base = StreamedProducts<C>;
  using typename Base::Shape;
  using typename Base::Rule;
  using typename Base::Words;
  using typename Base::Stamps;
  using Base::kTiles, Base::kSteps, Base::kEach, Base::kParts, Base::kGroups, Base::kGroupsEach;
  using Base::kInputParts, Base::kOutputs, Base::kBias, Base::first_step, Base::begin_step, Base::first_input_step;
  using Base::low;
  using Base::high, Base::slopes, Base::at, Base::receive;
  using Base::multiply_tiles, Base::finish_backward, Base::updated, Base::own_words, Base::update;

  template <bool SECOND>
  static __device__ __forceinline__ void store_logits(const float* scratch, const float* bias, float* logits) {
    Base::template add_up<kParts>(scratch, [=](int, int example, int feature, float sum) {
      const int output = feature + (SECOND ? 8 : 0);
      if (output < kOutputs && example < Shape::kColumns) {
        if constexpr (kBias) sum += bias[output];
        logits[output * Shape::kPitch + example] = sum;
      }
    });
  }

  // Two neighboring examples of a gradient [outputs, kPitch]: those of 8 outputs and 8 examples.
  static __device__ __forceinline__ unsigned int gradient_word(const Half* gradient, int outputs, int examples) {
    return *reinterpret_cast<const unsigned int*>(gradient + (outputs * 8 + lane_index() / 4) * Shape::kPitch +
                                                  examples * 8 + lane_index() % 4 * 2);
  }
  using Gradient = unsigned int[kTiles][4];
  static __device__ __forceinline__ void load_gradient(Gradient& d, const Half* gradient) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) load_gradient(d[m], gradient, m);
  }
  // Of a tile, as the left operand of a GEMM whose inner dimension is the outputs.
  static __device__ __forceinline__ void load_gradient(unsigned int (&d)[4], const Half* gradient, int tile) {
    const int matrix = lane_index() / 8;
    ptx::load_matrices<true>(d, ptx::shared_address(gradient + (matrix / 2 * 8 + lane_index() % 8) * Shape::kPitch +
                                                    (2 * tile + matrix % 2) * 8));
  }

  // The gathered values become the gradients of their sums.
  static __device__ __forceinline__ void last_backward(Words (&a)[kEach], const uint4* last, const Half* gradient) {
    const int first = first_step();
    Gradient d;
    load_gradient(d, gradient);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint4 w = Base::template load_last<true>(last, first + i);
      const unsigned int b[2][2] = {{w.x, w.z}, {w.y, w.w}};
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum[4] = {};
          ptx::multiply<bfloat16>(sum, d[m], b[half][0], b[half][1]);
          unsigned int &upper = a[i][half][m / 2][m % 2 * 2], &lower = a[i][half][m / 2][m % 2 * 2 + 1];
          upper = slopes(sum[0], sum[1], upper), lower = slopes(sum[2], sum[3], lower);
        }
      }
    }
  }

  // One warp: the last layer's weights of this block's 8 features, which all blocks get, and its biases.
  static __device__ __forceinline__ void update_last(const Half* gradient, const float4* own, float4* weights,
                                                     float* bias, float4* sent, int rank, unsigned int bit,
                                                     const Rule& rule) {
    float sum[4] = {};
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const uint2 words = own_words(own, m);
      const unsigned int left[4] = {gradient_word(gradient, 0, 2 * m), gradient_word(gradient, 1, 2 * m),
                                    gradient_word(gradient, 0, 2 * m + 1), gradient_word(gradient, 1, 2 * m + 1)};
      ptx::multiply<bfloat16>(sum, left, ptx::transpose_matrix(words.x), ptx::transpose_matrix(words.y));
    }
    const float4 w = updated(weights[lane_index()], sum, rule);
    weights[lane_index()] = w;
    const float4 quad = make_float4(__uint_as_float(ptx::pack_bf16(w.x, w.y)),
                                    __uint_as_float(ptx::pack_bf16(w.z, w.w)), 0.0f, 0.0f);
    ptx::store_flagged(sent + rank * 32 + lane_index(), quad, bit);
    if constexpr (kBias) {
      if (lane_index() < kOutputs) {
        const Half* const row = gradient + lane_index() * Shape::kPitch;
        float total = 0.0f;
#pragma unroll 8
        for (int i = 0; i < Shape::kColumns; ++i) total += low(row[i]);
        bias[lane_index()] = rule(bias[lane_index()], total, nullptr);
      }
    }
  }

  // One warp: the biases below the last layer. Their gradient is in no block's own quads.
  static __device__ __forceinline__ void update_biases_below(const Half* gradient, const uint4* last, int rank,
                                                             const float4* own, float* bias, const Rule& rule) {
    Gradient d;
    load_gradient(d, gradient);
    const uint4 w = Base::template load_last<true>(last, rank / 2);
    const unsigned int b0 = rank % 2 == 0 ? w.x : w.y, b1 = rank % 2 == 0 ? w.z : w.w;
    float first = 0.0f, second = 0.0f;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float sum[4] = {};
      ptx::multiply<bfloat16>(sum, d[m], b0, b1);
      const uint2 saved = own_words(own, m);
      const unsigned int upper = slopes(sum[0], sum[1], saved.x), lower = slopes(sum[2], sum[3], saved.y);
      first += low(upper) + low(lower), second += high(upper) + high(lower);
    }
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      first += __shfl_xor_sync(kFullWarp, first, step), second += __shfl_xor_sync(kFullWarp, second, step);
    }
    if (lane_index() < 4) {
      float* const to = bias + lane_index() * 2;
      to[0] = rule(to[0], first, nullptr), to[1] = rule(to[1], second, nullptr);
    }
  }

  // -- the phases of a step ------------------------------------------------------------------------------------
  template <typename T>
  static __device__ __forceinline__ void first_forward(const T* images, int ld, int rows, int stage, int weights,
                                                       int bias, int own, float4* to, unsigned int bit,
                                                       int scratch, Stamps stamp) {
    Words a[2 * kGroupsEach];
    Base::template load_inputs<false>(a, images, ld, rows, stage);
    stamp(0);
    multiply_tiles(a, first_input_step(), first_input_step(), 2 * kGroups,
                   Base::template at_as<const float4>(weights), at(scratch));
    __syncthreads();
    stamp(1);
    Base::template finish_forward<kInputParts>(at(scratch), at(bias), Base::template at_as<float4>(own), to, bit);
    stamp(2);
  }

  static __device__ __forceinline__ void forward(const float4* from, int words, int bias, int own, float4* to,
                                              unsigned int bit, int scratch, Stamps stamp) {
    Words a[kEach];
    receive(a, from, bit);
    stamp(0);
    Base::template multiply_words<false>(a, Base::template at_as<const uint2>(words), at(scratch));
    __syncthreads();
    stamp(1);
    Base::template finish_forward<kParts>(at(scratch), at(bias), Base::template at_as<float4>(own), to, bit);
    stamp(2);
  }

  // The last layer up to its logits, and from the gradient of these on. Between them, `loss` is called.
  template <typename F>
  static __device__ __forceinline__ void last_layer(const float4* from, int last, int bias, int logits, int gradient,
                                                    int scratch, int other, F loss, int own_values, int own,
                                                    int weights, float4* to, unsigned int bit, const Rule& rule,
                                                    Stamps stamp) {
    Words a[kEach];
    receive(a, from, bit);
    stamp(0);
    Base::template multiply_words<false>(a, Base::template at_as<const uint4>(last), at(scratch));
    if constexpr (kOutputs > 8) {
      __syncthreads();  // all have added up what lies there
      Base::template multiply_words<true>(a, Base::template at_as<const uint4>(last), at(other));
    }
    __syncthreads();
    store_logits<false>(at(scratch), at(bias), at(logits));
    if constexpr (kOutputs > 8) store_logits<true>(at(other), at(bias), at(logits));
    __syncthreads();
    stamp(1);
    loss();
    __syncthreads();
    stamp(2);
    last_backward(a, Base::template at_as<const uint4>(last), Base::template at_as<const Half>(gradient));
    stamp(3);
    pass_back(a, kOutputs > 8 ? scratch : other, own_values, own, weights, to, bit, rule, stamp, 4);
  }

  // The backward GEMM of a layer by the gradient in registers, and the update of its weights.
  static __device__ __forceinline__ void pass_back(const Words (&a)[kEach], int scratch, int own_values, int own,
                                                   int weights, float4* to, unsigned int bit, const Rule& rule,
                                                   Stamps stamp, int first_stamp) {
    multiply_tiles(a, first_step(), begin_step(), kSteps, Base::template at_as<const float4>(weights), at(scratch));
    __syncthreads();
    stamp(first_stamp);
    finish_backward(at(scratch), Base::template at_as<const float4>(own_values),
                    Base::template at_as<float4>(own), to, bit);
    stamp(first_stamp + 1);
    update(a, first_step(), begin_step(), kSteps, Base::template at_as<const float4>(own_values),
           Base::template at_as<float4>(weights), rule);
  }

  static __device__ __forceinline__ void backward(const float4* from, int scratch, int own_values, int own,
                                                  int weights, float4* to, unsigned int bit, const Rule& rule,
                                                  Stamps stamp) {
    Words a[kEach];
    receive(a, from, bit);
    stamp(0);
    pass_back(a, scratch, own_values, own, weights, to, bit, rule, stamp, 1);
    stamp(3);
  }

  // With one stage, the inputs of the next step, `next_rows`, come as soon as those of this one are in registers.
  template <typename T>
  static __device__ __forceinline__ void update_first(const T* images, int ld, int rows, int next_rows, int stage,
                                                      int own, int weights, const Rule& rule, Stamps stamp) {
    Words a[2 * kGroupsEach];
    constexpr bool transposed = Base::kStages > 0;
    Base::template load_inputs<transposed>(a, images, ld, rows, stage);
    if constexpr (Base::kStages == 1) {
      __syncwarp();
      Base::fetch_inputs(images, ld, next_rows, stage);
    }
    stamp(1);
    Base::template update<transposed>(a, first_input_step(), first_input_step(), 2 * kGroups,
                                      Base::template at_as<const float4>(own), Base::template at_as<float4>(weights),
                                      rule);
  }
};
