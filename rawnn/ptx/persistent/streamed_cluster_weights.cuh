// Weights of clusters that share the GEMMs of a step that streams (streamed_clusters.cuh): what blocks send to each
// other at the end of a step, and loads and stores of a launch.
#pragma once
#include "persistent/streamed_cluster_operands.cuh"

template <typename C>
struct StreamedClusterWeights : StreamedClusterOperands<C> {
  using Base = StreamedClusterOperands<C>;
  using Base::kBlocks, Base::kInputs, Base::kOutputs, Base::kSteps, Base::kWarps, Base::kPeers, Base::kShare;
  using Base::kInputShare, Base::at, Base::bits, Base::cluster, Base::q, Base::rank;
  using Base::receive_quads, Base::receive_rest;
  template <int STEPS>
  static constexpr int kSplit = Base::template kSplit<STEPS>;
  template <int STEPS>
  static constexpr int kOwners = Base::template kOwners<STEPS>;
  __device__ __forceinline__ explicit StreamedClusterWeights(int block) : Base(block) {}

  // -- new weights for the forward GEMMs of other blocks: as quads of StreamedWeights, [receiver][sender][lane] ------
  template <int LAYERS>
  static __device__ __noinline__ void send_weights(StreamedClusterWeights net, float4* sent, int place,
                                                  unsigned int bit) {
    const float4* const weights = Base::template at_as<const float4>(place);
#pragma unroll 1
    for (int unit = warp_index(); unit < kShare * kSplit<kShare>; unit += kWarps) {
      const int step = unit % kShare, first = unit / kShare * kOwners<kShare>;
#pragma unroll
      for (int owner = first; owner < first + kOwners<kShare>; ++owner) {
        if (kPeers % kOwners<kShare> != 0 && owner >= kPeers) break;
#pragma unroll
        for (int trio = 0; trio < ceil_div(LAYERS, 3); ++trio) {
          unsigned int words[2][3] = {};
#pragma unroll
          for (int j = 0; j < 3; ++j) {
            if (trio * 3 + j >= LAYERS) break;
            const float4 w = weights[((trio * 3 + j) * kSteps + owner * kShare + step) * 32 + lane_index()];
            words[0][j] = ptx::pack_bf16(w.x, w.y), words[1][j] = ptx::pack_bf16(w.z, w.w);
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float4 quad = make_float4(__uint_as_float(words[half][0]), __uint_as_float(words[half][1]),
                                            __uint_as_float(words[half][2]), 0.0f);
            const int receiver = (net.q * kShare + step) * 2 + half;
            ptx::store_flagged(sent + ((trio * kBlocks + receiver) * kBlocks + net.cluster * kPeers + owner) * 32 +
                                   lane_index(), quad, bit);
          }
        }
      }
    }
  }
  // Rows of quads [own row][sender of the share], of which a warp receives some.
  static constexpr int kRows = 2 * kSteps, kRowsEach = ceil_div(kRows, kWarps);
  using Early = float4[kRowsEach];
  __device__ __forceinline__ const float4* row_of(const float4* sent, int trio, int row) const {
    const int i = min(row, kRows - 1);
    return sent + ((trio * kBlocks + cluster * kPeers + i / (2 * kShare)) * kBlocks + q * 2 * kShare +
                   i % (2 * kShare)) * 32 + lane_index();
  }
  // Loads those of three layers ahead of their use, whether or not they are there.
  __device__ __forceinline__ void request_weights(Early& v, const float4* sent) const {
    const int begin = warp_index() * kRowsEach;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) v[i] = ptx::load_flagged(row_of(sent, 0, begin + i));
  }
  template <int LAYERS>
  __device__ __forceinline__ void receive_weights(Early& v, const float4* sent, int place, unsigned int bit) const {
    unsigned int* const words = Base::template at_as<unsigned int>(place);
    const int begin = warp_index() * kRowsEach, lane = lane_index();
#pragma unroll
    for (int trio = 0; trio < ceil_div(LAYERS, 3); ++trio) {
      const auto place = [&](int i) { return row_of(sent, trio, begin + i); };
      if (trio == 0) {
        receive_rest(v, place, bit);
      } else {
        receive_quads(v, place, bit);
      }
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        const unsigned int found[3] = {bits(v[i].x), bits(v[i].y), bits(v[i].z)};
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          if (trio * 3 + j < LAYERS && (kRows % kWarps == 0 || begin + i < kRows)) {
            words[(((trio * 3 + j) * kSteps + (begin + i) / 2) * 32 + lane) * 2 + (begin + i) % 2] = found[j];
          }
        }
      }
    }
  }
  // The last layer's words [step of the share][lane], and behind them those of this block's own features.
  __device__ __forceinline__ int last_step(int step) const { return step < kShare ? q * kShare + step : rank() / 2; }
  static __device__ __noinline__ void receive_last(StreamedClusterWeights net, const float4* sent, int place,
                                                  unsigned int bit) {
    unsigned int* const words = Base::template at_as<unsigned int>(place) + lane_index();
#pragma unroll 1
    for (int step = warp_index(); step <= kShare; step += kWarps) {
      float4 v[2];
      receive_quads(v, [&](int i) { return sent + (net.last_step(step) * 2 + i) * 32 + lane_index(); }, bit);
      unsigned int* const to = words + step * 128;
      to[0] = bits(v[0].x), to[32] = bits(v[1].x), to[64] = bits(v[0].y), to[96] = bits(v[1].y);
    }
  }
  __device__ __forceinline__ const uint4* own_last(int place) const {  // counted from the step of own features on
    return Base::template at_as<const uint4>(place) + (kShare - rank() / 2) * 32;
  }

  // -- begin and end of a launch -------------------------------------------------------------------------------
  // body(float of the tile, output, input) for what this warp has of a layer's tiles: the first, or one between.
  template <bool FIRST, typename F>
  __device__ __forceinline__ void for_tiles(F body) const {
    constexpr int steps = FIRST ? kInputShare : kShare;
#pragma unroll 1
    for (int tile = warp_index(); tile < kPeers * steps; tile += kWarps) {
      const int step = q * steps + tile % steps, owner = cluster * kPeers + tile / steps;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int down = lane_index() / 4 + i / 2 * 8, across = owner * 8 + lane_index() % 4 * 2 + i % 2;
        if constexpr (FIRST) {
          const int in = step * 16 + down;
          if (in < kInputs) body((tile * 32 + lane_index()) * 4 + i, across, in);
        } else {
          body((tile * 32 + lane_index()) * 4 + i, step * 16 + down, across);
        }
      }
    }
  }
  template <bool FIRST>
  static __device__ __noinline__ void load_tiles(StreamedClusterWeights net, int place, const float* w, int ld) {
    net.template for_tiles<FIRST>([=](int i, int out, int in) {
      at(place)[i] = w[static_cast<long long>(out) * ld + in];
    });
  }
  template <bool FIRST, typename T>
  static __device__ __noinline__ void store_tiles(StreamedClusterWeights net, T* w, int ld, int place) {
    net.template for_tiles<FIRST>([=](int i, int out, int in) {
      w[static_cast<long long>(out) * ld + in] = from_float<T>(at(place)[i]);
    });
  }
  static __device__ __forceinline__ unsigned int word_of(const float* w, int ld, int output, int step, int half) {
    const float* const from = w + static_cast<long long>(output) * ld + step * 16 + half * 8 + lane_index() % 4 * 2;
    return ptx::pack_bf16(from[0], from[1]);
  }
  static __device__ __noinline__ void load_words(StreamedClusterWeights net, int place, const float* w, int ld) {
    unsigned int* const words = Base::template at_as<unsigned int>(place);
#pragma unroll 1
    for (int row = warp_index(); row < 2 * kSteps; row += kWarps) {
      const int output = (net.cluster * kPeers + row / (2 * kShare)) * 8 + lane_index() / 4;
      words[(row / 2 * 32 + lane_index()) * 2 + row % 2] =
          word_of(w, ld, output, net.q * kShare + row / 2 % kShare, row % 2);
    }
  }
  static __device__ __noinline__ void load_last_words(StreamedClusterWeights net, int place, const float* w, int ld) {
    unsigned int* const words = Base::template at_as<unsigned int>(place);
#pragma unroll 1
    for (int row = warp_index(); row < 4 * (kShare + 1); row += kWarps) {
      const int output = row % 4 / 2 * 8 + lane_index() / 4;
      words[row * 32 + lane_index()] =
          output < kOutputs ? word_of(w, ld, output, net.last_step(row / 4), row % 2) : 0u;
    }
  }
};
