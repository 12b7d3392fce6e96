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
#include "losses/metrics.cuh"
#include "optimizers/step_functors.cuh"
#include "persistent/flag_bits.cuh"
#include "persistent/pairs_16bit.cuh"

//
// Layers of a kind are a loop, and places in shared memory floats from its start: a step in straight code would
// be three times as long, and its addresses would fill the registers. (A function would save registers.)
struct NoStamps {
  __device__ __forceinline__ void operator()(int) const {}
};

// STAGES: buffers of inputs in shared memory. With two, those of the next step come during a step; with one,
// behind the first layer's update; with none, inputs are loaded from L2 in both passes.
template <typename SHAPE, typename RULE, typename ACTIVATION, int INPUTS, int HIDDEN, int OUTPUTS, bool BIAS,
          int STAGES, typename STAMPS>
struct Streamed {
  static constexpr int kTiles = SHAPE::kColumns / 16;
  static constexpr int kPairs = ceil_div(kTiles, 2);
  static constexpr int kWarps = SHAPE::kThreads / 32;
  static constexpr int kBlocks = HIDDEN / 8;
  static constexpr int kSteps = HIDDEN / 16;               // of a gathered boundary
  static constexpr int kEach = ceil_div(kSteps, kWarps);   // of a warp
  static constexpr int kParts = ceil_div(kSteps, kEach);   // warps that have some
  static constexpr int kGroups = ceil_div(INPUTS, 32);     // of inputs: two steps each
  static constexpr int kGroupsEach = ceil_div(kGroups, kWarps);
  static constexpr int kInputParts = ceil_div(kGroups, kGroupsEach);
  static constexpr int kQuads = kPairs * 32;               // that a block publishes
  static constexpr int kPartFloats = kTiles * 128;         // partial sums of a warp
  static constexpr int kWait = 3;
  static_assert(SHAPE::kColumns % 16 == 0 && HIDDEN % 16 == 0 && INPUTS % 8 == 0 && OUTPUTS <= 16, "no such step");

  using Words = unsigned int[kTiles][4];

  static __device__ __forceinline__ int first_step() { return warp_index() * kEach; }
  static __device__ __forceinline__ int first_input_step() { return warp_index() * kGroupsEach * 2; }

  static __device__ __forceinline__ unsigned int bits(float v) { return __float_as_uint(v); }
  static __device__ __forceinline__ float low(unsigned int w) { return __uint_as_float(w << 16); }
  static __device__ __forceinline__ float high(unsigned int w) { return __uint_as_float(w & 0xffff0000u); }
  static __device__ __forceinline__ unsigned int slopes(float first, float second, unsigned int saved) {
    return ptx::pack_bf16(ACTIVATION::backward(first, low(saved)), ACTIVATION::backward(second, high(saved)));
  }

  // -- receive -----------------------------------------------------------------------------------------------
  // The fragments of this warp's steps of a gathered boundary.
  static __device__ __forceinline__ void receive(Words (&a)[kEach], const float4* gathered, unsigned int bit) {
    constexpr int quads = 2 * kPairs;
    const int first = first_step();
    if (first >= kSteps) return;
    float4 v[kEach * quads];
    const float4* const from = gathered + lane_index();
    receive_flagged(v, [=](int i) {
      return from + (min(first + i / quads, kSteps - 1) * quads + i % quads) * 32;
    }, bit, kWait);
    __syncwarp();  // products need all lanes
#pragma unroll
    for (int i = 0; i < kEach * quads; ++i) {
      const int half = i / kPairs % 2;
      const int tile = i % kPairs * 2;
      a[i / quads][tile][2 * half] = bits(v[i].x), a[i / quads][tile][2 * half + 1] = bits(v[i].y);
      if (tile + 1 < kTiles) {
        a[i / quads][tile + 1][2 * half] = bits(v[i].z), a[i / quads][tile + 1][2 * half + 1] = bits(v[i].w);
      }
    }
  }

  // The inputs of the examples `rows`, 16 bytes a load: feature 8t + 4s + q of a group of 32 is place
  // 2t + q % 2 + q / 2 * 8 of its step s (place_of_input is the inverse). With STAGES, from `stage`, where
  // fetch_inputs has put them: a lane reads what it has fetched itself.
  template <typename T>
  static __device__ __forceinline__ void load_inputs(Words (&a)[2 * kGroupsEach], const T* images, int ld, int rows,
                                                     int stage) {
    if constexpr (STAGES > 0) ptx::wait_for_copies<0>();
    for_inputs(images, ld, rows, [&](int i, int group, int tile, int half, const T* from, bool exists) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if constexpr (STAGES > 0) {
        v = at_as<const uint4>(stage)[i];
      } else if (exists) {
        v = *reinterpret_cast<const uint4*>(from);
      }
      a[2 * group][tile][half] = v.x, a[2 * group][tile][2 + half] = v.y;
      a[2 * group + 1][tile][half] = v.z, a[2 * group + 1][tile][2 + half] = v.w;
    });
  }
  template <typename T>
  static __device__ __forceinline__ void fetch_inputs(const T* images, int ld, int rows, int stage) {
    for_inputs(images, ld, rows, [=](int i, int, int, int, const T* from, bool exists) {
      ptx::copy_async<16>(ptx::shared_address(at_as<uint4>(stage) + i), from, exists ? 16 : 0);
    });
    ptx::commit_copies();
  }
  // body(quad of a stage, group, tile, half, place of 8 inputs, whether they exist) for all of this lane.
  template <typename T, typename F>
  static __device__ __forceinline__ void for_inputs(const T* images, int ld, int rows, F body) {
    if (first_input_step() >= 2 * kGroups) return;
    const int first = first_input_step() * 16 + lane_index() % 4 * 8;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int example = at_as<const int>(rows)[tile * 16 + half * 8 + lane_index() / 4];
        const T* const row = images + static_cast<long long>(example) * ld;
#pragma unroll
        for (int group = 0; group < kGroupsEach; ++group) {
          const int i = (((warp_index() * kGroupsEach + group) * kTiles + tile) * 2 + half) * 32 + lane_index();
          const bool exists = first + group * 32 < INPUTS;
          body(i, group, tile, half, exists ? row + first + group * 32 : row, exists);
        }
      }
    }
  }
  // One warp of each block loads a part of the next step's inputs, so that L2 has them. Nobody reads the copies.
  template <typename T>
  static __device__ __forceinline__ void load_ahead(const T* images, int ld, int rows, int copies, int rank) {
    constexpr int sectors = ceil_div(INPUTS, 16);
    const int* const row = at_as<const int>(rows);
#pragma unroll 1
    for (int i = rank * 32 + lane_index(); i < SHAPE::kColumns * sectors; i += kBlocks * 32) {
      ptx::copy_async<16>(ptx::shared_address(at(copies) + lane_index() * 4),
                          images + static_cast<long long>(row[i / sectors]) * ld + i % sectors * 16);
    }
    ptx::commit_copies();
  }
  static __device__ __forceinline__ int place_of_input(int step, int place) {
    return step / 2 * 32 + place % 8 / 2 * 8 + step % 2 * 4 + place / 8 * 2 + place % 2;
  }

  // -- products ----------------------------------------------------------------------------------------------
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
    constexpr int rounds = ceil_div(kPairs * 256, SHAPE::kThreads);
    float sums[rounds][PARTS];
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      const int e = thread_index() + round * SHAPE::kThreads;
      const int tile = e / 256 * 2 + e % 8 / 4;
      const float* const from = scratch + tile * 128 + (e / 8 % 32 ^ tile % 2 * 4) * 4 + e % 4;
#pragma unroll
      for (int i = 0; i < PARTS; ++i) {
        sums[round][i] = e < kPairs * 256 && tile < kTiles ? from[i * kPartFloats] : 0.0f;
      }
    }
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      const int e = thread_index() + round * SHAPE::kThreads;
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
      if (BIAS || ALWAYS || to == nullptr) own[number / 8] = quad;
    }
  }

  template <int PARTS>
  static __device__ __forceinline__ void finish_forward(const float* scratch, const float* bias, float4* own,
                                                        float4* to, unsigned int bit) {
    add_up<PARTS>(scratch, [=](int number, int, int feature, float sum) {
      if constexpr (BIAS) sum += bias[feature];
      const bool padding = kTiles % 2 != 0 && number / 256 == kPairs - 1 && number % 8 > 3;
      store_own<true>(number, padding ? 0.0f : ACTIVATION::apply(sum), own, to, bit);
    });
  }

  static __device__ __forceinline__ void finish_backward(const float* scratch, const float4* own_values,
                                                         float4* own, float4* to, unsigned int bit) {
    const unsigned short* const saved = reinterpret_cast<const unsigned short*>(own_values);
    add_up<kParts>(scratch, [=](int number, int, int, float sum) {
      const float value = ACTIVATION::backward(sum, low(saved[number]));
      store_own<false>(number, value, own, to, bit);
    });
  }

  // -- updates -----------------------------------------------------------------------------------------------
  static __device__ __forceinline__ float4 updated(float4 w, const float (&gradient)[4], const RULE& rule) {
    return make_float4(rule(w.x, gradient[0], nullptr), rule(w.y, gradient[1], nullptr),
                       rule(w.z, gradient[2], nullptr), rule(w.w, gradient[3], nullptr));
  }
  static __device__ __forceinline__ uint2 own_words(const float4* own, int tile) {
    return reinterpret_cast<const uint2*>(own)[(tile / 2 * 32 + lane_index()) * 2 + tile % 2];
  }

  // The update of tiles of weights [step][lane]: fragments transposed, times this block's own 8 features.
  template <int EACH>
  static __device__ __forceinline__ void update(const Words (&a)[EACH], int first, int steps, const float4* own,
                                                float4* weights, const RULE& rule) {
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
  static __device__ __forceinline__ void update_biases(const float4* own, float* bias, const RULE& rule) {
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

  // -- new weights for the forward GEMMs of other blocks --------------------------------------------------------
  // Quads [of three layers][receiver][sender][lane]: a word of each layer, and the flag bit.
  template <int LAYERS>
  static __device__ __noinline__ void send_weights(float4* sent, int rank, int place, unsigned int bit) {
    const float4* const weights = at_as<const float4>(place);
    const int first = first_step();
#pragma unroll 1
    for (int i = 0; i < kEach; ++i) {
      const int step = first + i;
      if (step >= kSteps) break;
#pragma unroll
      for (int q = 0; q < ceil_div(LAYERS, 3); ++q) {
        unsigned int words[2][3] = {};
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          if (q * 3 + j >= LAYERS) break;
          const float4 w = weights[((q * 3 + j) * kSteps + step) * 32 + lane_index()];
          words[0][j] = ptx::pack_bf16(w.x, w.y), words[1][j] = ptx::pack_bf16(w.z, w.w);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 quad = make_float4(__uint_as_float(words[half][0]), __uint_as_float(words[half][1]),
                                          __uint_as_float(words[half][2]), 0.0f);
          ptx::store_flagged(sent + ((q * kBlocks + step * 2 + half) * kBlocks + rank) * 32 + lane_index(), quad,
                             bit);
        }
      }
    }
  }
  // Each warp receives those of its own steps: words [layer][step][lane], and of the last layer.
  template <int LAYERS>
  static __device__ __noinline__ void receive_weights(const float4* sent, const float4* of_last, int rank,
                                                      int place, int place_of_last, unsigned int bit) {
    unsigned int* const words = at_as<unsigned int>(place);
    unsigned int* const last = at_as<unsigned int>(place_of_last);
    const int first = first_step(), lane = lane_index();
    if (first >= kSteps) return;
#pragma unroll
    for (int q = 0; q <= ceil_div(LAYERS, 3); ++q) {
      const bool is_last = q == ceil_div(LAYERS, 3);
      const float4* const from = is_last ? of_last + lane : sent + (q * kBlocks + rank) * (kBlocks * 32) + lane;
      float4 v[kEach * 2];
      receive_flagged(v, [=](int i) { return from + (min(first + i / 2, kSteps - 1) * 2 + i % 2) * 32; }, bit,
                      kWait);
#pragma unroll
      for (int i = 0; i < kEach * 2; ++i) {
        const int step = first + i / 2;
        if (step >= kSteps) break;
        const unsigned int found[3] = {bits(v[i].x), bits(v[i].y), bits(v[i].z)};
        if (is_last) {
          last[(step * 32 + lane) * 4 + i % 2] = found[0], last[(step * 32 + lane) * 4 + i % 2 + 2] = found[1];
          continue;
        }
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          if (q * 3 + j < LAYERS) words[(((q * 3 + j) * kSteps + step) * 32 + lane) * 2 + i % 2] = found[j];
        }
      }
    }
  }

  // -- the last layer, which all blocks have in full ----------------------------------------------------------
  template <bool SECOND>
  static __device__ __forceinline__ void store_logits(const float* scratch, const float* bias, float* logits) {
    add_up<kParts>(scratch, [=](int, int example, int feature, float sum) {
      const int output = feature + (SECOND ? 8 : 0);
      if (output < OUTPUTS && example < SHAPE::kColumns) {
        if constexpr (BIAS) sum += bias[output];
        logits[output * SHAPE::kPitch + example] = sum;
      }
    });
  }

  // Two neighboring examples of a gradient [outputs, kPitch]: those of 8 outputs and 8 examples.
  static __device__ __forceinline__ unsigned int gradient_word(const Half* gradient, int outputs, int examples) {
    return *reinterpret_cast<const unsigned int*>(gradient + (outputs * 8 + lane_index() / 4) * SHAPE::kPitch +
                                                  examples * 8 + lane_index() % 4 * 2);
  }
  static __device__ __forceinline__ void load_gradient(Words& d, const Half* gradient) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        d[m][q] = ptx::transpose_matrix(gradient_word(gradient, q / 2, 2 * m + q % 2));
      }
    }
  }

  // The gathered values become the gradients of their sums.
  static __device__ __forceinline__ void last_backward(Words (&a)[kEach], const uint4* last, const Half* gradient) {
    const int first = first_step();
    if (first >= kSteps) return;
    Words d;
    load_gradient(d, gradient);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (first + i >= kSteps) break;
      const uint4 w = last[(first + i) * 32 + lane_index()];
      const unsigned int b[2][2] = {{ptx::transpose_matrix(w.x), ptx::transpose_matrix(w.z)},
                                    {ptx::transpose_matrix(w.y), ptx::transpose_matrix(w.w)}};
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum[4] = {};
          ptx::multiply<bfloat16>(sum, d[m], b[half][0], b[half][1]);
          a[i][m][2 * half] = slopes(sum[0], sum[1], a[i][m][2 * half]);
          a[i][m][2 * half + 1] = slopes(sum[2], sum[3], a[i][m][2 * half + 1]);
        }
      }
    }
  }

  // One warp: the last layer's weights of this block's 8 features, which all blocks get, and its biases.
  static __device__ __forceinline__ void update_last(const Half* gradient, const float4* own, float4* weights,
                                                     float* bias, float4* sent, int rank, unsigned int bit,
                                                     const RULE& rule) {
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
    if constexpr (BIAS) {
      if (lane_index() < OUTPUTS) {
        const Half* const row = gradient + lane_index() * SHAPE::kPitch;
        float total = 0.0f;
#pragma unroll 8
        for (int i = 0; i < SHAPE::kColumns; ++i) total += low(row[i]);
        bias[lane_index()] = rule(bias[lane_index()], total, nullptr);
      }
    }
  }

  // One warp: the biases below the last layer. Their gradient is in no block's own quads.
  static __device__ __forceinline__ void update_biases_below(const Half* gradient, const uint4* last, int rank,
                                                             const float4* own, float* bias, const RULE& rule) {
    Words d;
    load_gradient(d, gradient);
    const uint4 w = last[rank / 2 * 32 + lane_index()];
    const unsigned int b0 = ptx::transpose_matrix(rank % 2 == 0 ? w.x : w.y);
    const unsigned int b1 = ptx::transpose_matrix(rank % 2 == 0 ? w.z : w.w);
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
  static __device__ __forceinline__ float* at(int place) { return ptx::dynamic_shared<float>() + place; }
  template <typename T>
  static __device__ __forceinline__ T* at_as(int place) { return reinterpret_cast<T*>(at(place)); }

  template <typename T>
  static __device__ __forceinline__ void first_forward(const T* images, int ld, int rows, int stage, int weights, int bias, int own,
                                                    float4* to, unsigned int bit, int scratch, STAMPS stamp) {
    Words a[2 * kGroupsEach];
    load_inputs(a, images, ld, rows, stage);
    stamp(0);
    multiply_tiles(a, first_input_step(), 2 * kGroups, at_as<const float4>(weights), at(scratch));
    __syncthreads();
    stamp(1);
    finish_forward<kInputParts>(at(scratch), at(bias), at_as<float4>(own), to, bit);
    stamp(2);
  }

  static __device__ __forceinline__ void forward(const float4* from, int words, int bias, int own, float4* to,
                                              unsigned int bit, int scratch, STAMPS stamp) {
    Words a[kEach];
    receive(a, from, bit);
    stamp(0);
    multiply_words<false>(a, at_as<const uint2>(words), at(scratch));
    __syncthreads();
    stamp(1);
    finish_forward<kParts>(at(scratch), at(bias), at_as<float4>(own), to, bit);
    stamp(2);
  }

  // The last layer up to its logits, and from the gradient of these on. Between them, `loss` is called.
  template <typename F>
  static __device__ __forceinline__ void last_layer(const float4* from, int last, int bias, int logits, int gradient,
                                                    int scratch, int other, F loss, int own_values, int own,
                                                    int weights, float4* to, unsigned int bit, const RULE& rule,
                                                    STAMPS stamp) {
    Words a[kEach];
    receive(a, from, bit);
    stamp(0);
    multiply_words<false>(a, at_as<const uint4>(last), at(scratch));
    __syncthreads();
    store_logits<false>(at(scratch), at(bias), at(logits));
    if constexpr (OUTPUTS > 8) {
      multiply_words<true>(a, at_as<const uint4>(last), at(other));
      __syncthreads();
      store_logits<true>(at(other), at(bias), at(logits));
    }
    __syncthreads();
    stamp(1);
    loss();
    __syncthreads();
    stamp(2);
    last_backward(a, at_as<const uint4>(last), at_as<const Half>(gradient));
    stamp(3);
    pass_back(a, OUTPUTS > 8 ? scratch : other, own_values, own, weights, to, bit, rule, stamp, 4);
  }

  // The backward GEMM of a layer by the gradient in registers, and the update of its weights.
  static __device__ __forceinline__ void pass_back(const Words (&a)[kEach], int scratch, int own_values, int own,
                                                   int weights, float4* to, unsigned int bit, const RULE& rule,
                                                   STAMPS stamp, int first_stamp) {
    multiply_tiles(a, first_step(), kSteps, at_as<const float4>(weights), at(scratch));
    __syncthreads();
    stamp(first_stamp);
    finish_backward(at(scratch), at_as<const float4>(own_values), at_as<float4>(own), to, bit);
    stamp(first_stamp + 1);
    update(a, first_step(), kSteps, at_as<const float4>(own_values), at_as<float4>(weights), rule);
  }

  static __device__ __forceinline__ void backward(const float4* from, int scratch, int own_values, int own,
                                                  int weights, float4* to, unsigned int bit, const RULE& rule,
                                                  STAMPS stamp) {
    Words a[kEach];
    receive(a, from, bit);
    stamp(0);
    pass_back(a, scratch, own_values, own, weights, to, bit, rule, stamp, 1);
    stamp(3);
  }

  template <typename T>
  static __device__ __forceinline__ void update_first(const T* images, int ld, int rows, int stage, int own, int weights,
                                                      const RULE& rule,
                                                   STAMPS stamp) {
    Words a[2 * kGroupsEach];
    load_inputs(a, images, ld, rows, stage);
    stamp(1);
    update(a, first_input_step(), 2 * kGroups, at_as<const float4>(own), at_as<float4>(weights), rule);
  }

  // -- begin and end of a launch -------------------------------------------------------------------------------
  // Calls body(float of the tile, output, input) for what this warp has of tiles of weights: by inputs, of
  // `outs` outputs, or of the first layer.
  template <typename F>
  static __device__ __forceinline__ void for_tiles(int rank, int first, int each, int steps, int outs, F body) {
#pragma unroll 1
    for (int step = first; step < min(first + each, steps); ++step) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int down = step * 16 + lane_index() / 4 + q / 2 * 8, across = rank * 8 + lane_index() % 4 * 2 + q % 2;
        if (down < outs) body((step * 32 + lane_index()) * 4 + q, down, across);
      }
    }
  }
  template <typename F>
  static __device__ __forceinline__ void for_first_tiles(int rank, F body) {
    for_tiles(rank, first_input_step(), 2 * kGroupsEach, 2 * kGroups, 2 * kGroups * 16, [=](int at, int down, int out) {
      const int in = place_of_input(down / 16, down % 16);
      if (in < INPUTS) body(at, out, in);
    });
  }
  // A layer: the first (FIRST), the last (`outs` is OUTPUTS), whose tile the last warp has, or one between.
  template <bool FIRST, typename F>
  static __device__ __forceinline__ void for_layer(int rank, int outs, bool is_last, F body) {
    if constexpr (FIRST) {
      for_first_tiles(rank, body);
    } else if (!is_last) {
      for_tiles(rank, first_step(), kEach, kSteps, outs, body);
    } else if (warp_index() == kWarps - 1) {
      for_tiles(rank, 0, 1, 1, outs, body);
    }
  }
  template <bool FIRST>
  static __device__ __noinline__ void load_tiles(int place, const float* w, int ld, int rank, int outs, bool is_last) {
    for_layer<FIRST>(rank, outs, is_last, [=](int i, int out, int in) {
      at(place)[i] = w[static_cast<long long>(out) * ld + in];
    });
  }
  template <bool FIRST, typename T>
  static __device__ __noinline__ void store_tiles(T* w, int ld, int place, int rank, int outs, bool is_last) {
    for_layer<FIRST>(rank, outs, is_last, [=](int i, int out, int in) {
      w[static_cast<long long>(out) * ld + in] = from_float<T>(at(place)[i]);
    });
  }
  // The words of this block's rows; of the last layer all rows, in two halves (`second`).
  template <bool LAST>
  static __device__ __noinline__ void load_words(int place, const float* w, int ld, int first_output, int second) {
    unsigned int* const words = at_as<unsigned int>(place);
#pragma unroll 1
    for (int i = 0; i < kEach * 2; ++i) {
      const int step = first_step() + i / 2, out = first_output + lane_index() / 4;
      if (step >= kSteps) break;
      const float* const from = w + static_cast<long long>(out) * ld + step * 16 + i % 2 * 8 + lane_index() % 4 * 2;
      const bool there = !LAST || out < OUTPUTS;
      words[(step * 32 + lane_index()) * (LAST ? 4 : 2) + second * 2 + i % 2] =
          there ? ptx::pack_bf16(from[0], from[1]) : 0u;
    }
  }
};
