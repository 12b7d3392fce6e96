// Weights of a step whose operands stream (streamed.cuh): what blocks send to each other at the end of a step, and
// loads and stores of a launch.
#pragma once
#include "persistent/streamed_operands.cuh"

template <typename C>
struct StreamedWeights : StreamedOperands<C> {
  using Base = StreamedOperands<C>;
  using Base::kWarps, Base::kBlocks, Base::kSteps, Base::kEach, Base::kGroups, Base::kGroupsEach;
  using Base::kInputs, Base::kOutputs, Base::first_step, Base::begin_step, Base::has_steps, Base::owns;
  using Base::first_input_step, Base::bits, Base::at, Base::place_of_input;

  // -- new weights for the forward GEMMs of other blocks --------------------------------------------------------
  // Quads [of three layers][receiver][sender][lane]: a word of each layer, and the flag bit.
  template <int LAYERS>
  static __device__ __noinline__ void send_weights(float4* sent, int rank, int place, unsigned int bit) {
    const float4* const weights = Base::template at_as<const float4>(place);
    const int begin = begin_step();
#pragma unroll 1
    for (int step = begin; step < min(begin + kEach, kSteps); ++step) {
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
  // Each warp receives those of its own steps: words [layer][step][lane].
  template <int LAYERS>
  static __device__ __noinline__ void receive_weights(const float4* sent, int rank, int place, unsigned int bit) {
    unsigned int* const words = Base::template at_as<unsigned int>(place);
    if (!has_steps()) return;
    const int first = first_step(), begin = begin_step(), lane = lane_index();
#pragma unroll
    for (int q = 0; q < ceil_div(LAYERS, 3); ++q) {
      float4 v[kEach * 2];
      Base::receive_together(v, sent + ((q * kBlocks + rank) * kBlocks + first * 2) * 32 + lane, bit);
#pragma unroll
      for (int i = 0; i < kEach * 2; ++i) {
        const unsigned int found[3] = {bits(v[i].x), bits(v[i].y), bits(v[i].z)};
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          if (q * 3 + j < LAYERS && owns(first + i / 2, begin)) {
            words[(((q * 3 + j) * kSteps + first + i / 2) * 32 + lane) * 2 + i % 2] = found[j];
          }
        }
      }
    }
  }
  // The same of the last layer, of which all blocks have all rows: four words [step][word][lane], which load_last
  // reads.
  static __device__ __noinline__ void receive_last(const float4* sent, int place, unsigned int bit) {
    unsigned int* const words = Base::template at_as<unsigned int>(place) + lane_index();
    if (!has_steps()) return;
    const int first = first_step(), begin = begin_step(), lane = lane_index();
    float4 v[kEach * 2];
    Base::receive_together(v, sent + first * 64 + lane, bit);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!owns(first + i, begin)) continue;
      unsigned int* const to = words + (first + i) * 128;
      to[0] = bits(v[2 * i].x), to[32] = bits(v[2 * i + 1].x);
      to[64] = bits(v[2 * i].y), to[96] = bits(v[2 * i + 1].y);
    }
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
      if (in < kInputs) body(at, out, in);
    });
  }
  // A layer: the first (FIRST), the last (`outs` is kOutputs), whose tile the last warp has, or one between.
  template <bool FIRST, typename F>
  static __device__ __forceinline__ void for_layer(int rank, int outs, bool is_last, F body) {
    if constexpr (FIRST) {
      for_first_tiles(rank, body);
    } else if (!is_last) {
      for_tiles(rank, begin_step(), kEach, kSteps, outs, body);
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
    unsigned int* const words = Base::template at_as<unsigned int>(place);
#pragma unroll 1
    for (int i = 0; i < kEach * 2; ++i) {
      const int step = begin_step() + i / 2, out = first_output + lane_index() / 4;
      if (step >= kSteps) break;
      const float* const from = w + static_cast<long long>(out) * ld + step * 16 + i % 2 * 8 + lane_index() % 4 * 2;
      const bool there = !LAST || out < kOutputs;
      const int last_place = (step * 4 + second * 2 + i % 2) * 32 + lane_index();
      words[LAST ? last_place : (step * 32 + lane_index()) * 2 + i % 2] =
          there ? ptx::pack_bf16(from[0], from[1]) : 0u;
    }
  }
};
