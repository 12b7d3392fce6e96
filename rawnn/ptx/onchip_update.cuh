// Weights, biases and what the optimizer keeps of them, on the chip.
//
// A layer's weights lie transposed, [inputs, LDW] floats, its biases behind one another. A gradient
// comes in tiles of 16 inputs x 8 outputs, as fragments: lane 4g + t has inputs g and g + 8, outputs
// 2t and 2t + 1 of each; 128 biases are a tile too, in their order. State is kept in the order of
// the tiles, [tile][state][lane] of float4, so that a lane finds its own in one access, near (shared
// memory) or far (a workspace in global memory, which the L2 cache holds).
#pragma once
#include "onchip_device.cuh"
#include "rounding.cuh"
#include "rules.cuh"

constexpr int kTileFloats = 128;
constexpr int kTileQuads = 32;

__device__ __forceinline__ void spread(float (&to)[4], const float4& from) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

// How new weights are kept. HOW says it for the tile (mt, nt) of a layer: with tile(mt, nt), which is
// called with each of the lane's four weights in the order of a fragment.
//
// As they are:
struct AsTheyAre {
  __device__ __forceinline__ AsTheyAre tile(int, int) const { return {}; }
  __device__ __forceinline__ float operator()(float weight, int) const { return weight; }
};

// Rounded to bfloat16 by chance: the lane's weights are the elements `first`, `first` + `inputs`, and
// those 8 behind these, each with the bits that (seed, stream, step, element) draws everywhere.
struct RoundedTile {
  bool rounds;
  unsigned long long seed;
  unsigned int stream;
  int step;
  unsigned int first, inputs;

  __device__ __forceinline__ float operator()(float weight, int q) const {
    if (!rounds) return weight;
    const unsigned int element = first + (q & 1 ? inputs : 0u) + (q & 2 ? 8u : 0u);
    return to_float(stochastic_round_bf16(weight, rounding_bits(seed, stream, step, element)));
  }
};

// Of a layer with INPUTS inputs, of which this block holds a part from (out, in) on.
template <int INPUTS>
struct ByChance {
  unsigned long long seed;
  unsigned int stream;
  int step;
  int out, in;

  __device__ __forceinline__ RoundedTile tile(int mt, int nt) const {
    const int lane = lane_index();
    const int row = out + nt * 8 + lane % 4 * 2;
    const int column = in + mt * 16 + lane / 4;
    return {true, seed, stream, step,
            static_cast<unsigned int>(row) * INPUTS + static_cast<unsigned int>(column), INPUTS};
  }
  // The same of a layer's tile by its number; biases, which lie behind TILES of weights, are kept.
  template <int ACROSS, int TILES>
  __device__ __forceinline__ RoundedTile numbered(int number) const {
    RoundedTile found = tile(number / ACROSS, number % ACROSS);
    found.rounds = number < TILES;
    return found;
  }
};

// Of all layers, by the number of a tile: as they are.
struct AllAsTheyAre {
  __device__ __forceinline__ AsTheyAre operator()(int) const { return {}; }
};

// A lane's state of one tile, in registers.
template <typename RULE, bool FAR>
struct Kept {
  static constexpr int kStates = RULE::kStates;
  float of[kStates > 0 ? kStates : 1][4];

  __device__ __forceinline__ void load(const float4* at) {
#pragma unroll
    for (int j = 0; j < kStates; ++j) {
      spread(of[j], FAR ? __ldcg(at + j * kTileQuads) : at[j * kTileQuads]);
    }
  }
  __device__ __forceinline__ void store(float4* at) const {
#pragma unroll
    for (int j = 0; j < kStates; ++j) {
      const float4 v = make_float4(of[j][0], of[j][1], of[j][2], of[j][3]);
      if constexpr (FAR) {
        __stcg(at + j * kTileQuads, v);
      } else {
        at[j * kTileQuads] = v;
      }
    }
  }
  // The lane's two pairs of weights, the second of which may not be there. All are read ahead of the
  // first store, so that the four chains of the rule run side by side.
  template <typename TILE = AsTheyAre>
  __device__ __forceinline__ void update(const RULE& rule, float* first, float* second,
                                         const float (&gradient)[4], const TILE& kept = {}) {
    const float2 upper = *reinterpret_cast<const float2*>(first);
    const float2 lower = second != nullptr ? *reinterpret_cast<const float2*>(second)
                                           : make_float2(0.0f, 0.0f);
    float w[4] = {upper.x, upper.y, lower.x, lower.y};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float state[kStates > 0 ? kStates : 1];
#pragma unroll
      for (int j = 0; j < kStates; ++j) state[j] = of[j][q];
      w[q] = kept(rule(w[q], gradient[q], state), q);
#pragma unroll
      for (int j = 0; j < kStates; ++j) of[j][q] = state[j];
    }
    *reinterpret_cast<float2*>(first) = make_float2(w[0], w[1]);
    if (second != nullptr) *reinterpret_cast<float2*>(second) = make_float2(w[2], w[3]);
  }
};

// Finish of a weight gradient's product: the update at once, where no other cluster has a part.
template <typename RULE, bool FAR, int LDW, int ROWS, int ACROSS, int TILES,
          typename HOW = AsTheyAre>
struct UpdateTiles {
  using Early = Kept<RULE, FAR>;
  const RULE& rule;
  float* w;
  float* bias;
  float4* states;
  HOW how = {};

  __device__ __forceinline__ float4* state_of(int tile) const {
    return states + tile * (RULE::kStates * kTileQuads);
  }
  __device__ __forceinline__ Early early(int mt, int nt) const {
    Early kept = {};
    if constexpr (FAR) kept.load(state_of(mt * ACROSS + nt) + lane_index());
    return kept;
  }
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4],
                                        const Early& early) const {
    const int lane = lane_index();
    Early kept = early;
    float4* const state = state_of(mt * ACROSS + nt) + lane;
    if constexpr (!FAR) kept.load(state);
    float* const at = w + (mt * 16 + lane / 4) * LDW + nt * 8 + lane % 4 * 2;
    const bool whole = ROWS % 16 == 0 || mt * 16 + 8 < ROWS;
    kept.update(rule, at, whole ? at + 8 * LDW : nullptr, sum, how.tile(mt, nt));
    kept.store(state);
  }
  __device__ __forceinline__ void sums(int nt, float first, float second) const {
    const int place = nt * 8 + lane_index() % 4 * 2;
    const float gradient[2] = {first, second};
    float* const state = reinterpret_cast<float*>(state_of(TILES + place / kTileFloats)) +
                         place % kTileFloats;
    constexpr int states = RULE::kStates > 0 ? RULE::kStates : 1;
    float kept[2][states];
    float w[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      w[i] = bias[place + i];
#pragma unroll
      for (int j = 0; j < RULE::kStates; ++j) {
        kept[i][j] = FAR ? __ldcg(state + j * kTileFloats + i) : state[j * kTileFloats + i];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bias[place + i] = rule(w[i], gradient[i], kept[i]);
#pragma unroll
      for (int j = 0; j < RULE::kStates; ++j) {
        if constexpr (FAR) {
          __stcg(state + j * kTileFloats + i, kept[i][j]);
        } else {
          state[j * kTileFloats + i] = kept[i][j];
        }
      }
    }
  }
};

// Where a lane's part of a tile lies: two pairs of weights; the second is not there where it would
// lie beyond the layer's rows.
struct Place {
  float* first;
  float* second;
};

template <int LDW, int ROWS, int ACROSS, int TILES>
__device__ __forceinline__ Place place_of(int tile, float* w, float* bias) {
  const int lane = lane_index();
  if (tile >= TILES) {
    float* const at = bias + (tile - TILES) * kTileFloats + lane * 4;
    return {at, at + 2};
  }
  const int mt = tile / ACROSS;
  float* const at = w + (mt * 16 + lane / 4) * LDW + tile % ACROSS * 8 + lane % 4 * 2;
  return {at, ROWS % 16 == 0 || mt * 16 + 8 < ROWS ? at + 8 * LDW : nullptr};
}

// A layer's part that this block holds: outputs from `out` on, `outs` of them, inputs from `in` on,
// `ins` of them, of a matrix [outputs, inputs] with rows `ld` apart.
struct Part {
  int out, outs, in, ins;
};

template <typename SHAPE, int LDW, typename T>
__device__ __forceinline__ void load_weights(float* image, const T* __restrict__ w, int ld,
                                             Part part) {
#pragma unroll 1
  for (int i = thread_index(); i < part.outs * part.ins; i += SHAPE::kThreads) {
    const int out = i / part.ins;
    const int in = i % part.ins;
    image[in * LDW + out] = to_float(w[static_cast<long long>(part.out + out) * ld + part.in + in]);
  }
}

template <typename SHAPE, int LDW, typename T>
__device__ __forceinline__ void store_weights_as(T* __restrict__ w, int ld, const float* image,
                                                 Part part) {
#pragma unroll 1
  for (int i = thread_index(); i < part.outs * part.ins; i += SHAPE::kThreads) {
    const int out = i / part.ins;
    const int in = i % part.ins;
    w[static_cast<long long>(part.out + out) * ld + part.in + in] =
        from_float<T>(image[in * LDW + out]);
  }
}

// body(place in a layer's state number `state`, index in the tensor or -1 for padding) for all of
// its tiles; of those from `base` on only each SHARES-th is kept, beginning with `share`.
template <typename SHAPE, int STATES, int ACROSS, int TILES, int SHARES, typename F>
__device__ __forceinline__ void for_states(int tiles, int base, int share, int state, int ld,
                                           Part part, F body) {
#pragma unroll 1
  for (int i = thread_index(); i < tiles * kTileFloats; i += SHAPE::kThreads) {
    const int tile = i / kTileFloats;
    const int place = i % kTileFloats;
    int slot = tile;
    if constexpr (SHARES > 1) {
      if ((base + tile) % SHARES != share) continue;
      slot = (base + tile) / SHARES;
    }
    long long index = -1;
    if (tile >= TILES) {
      const int out = (tile - TILES) * kTileFloats + place;
      if (out < part.outs) index = part.out + out;
    } else {
      const int lane = place / 4;
      const int in = tile / ACROSS * 16 + lane / 4 + place % 4 / 2 * 8;
      const int out = tile % ACROSS * 8 + lane % 4 * 2 + place % 2;
      if (in < part.ins && out < part.outs) {
        index = static_cast<long long>(part.out + out) * ld + part.in + in;
      }
    }
    body((slot * STATES + state) * kTileFloats + place, index, tile >= TILES);
  }
}

template <typename SHAPE, int STATES, int ACROSS, int TILES, int SHARES>
__device__ __forceinline__ void load_states(float* kept, int tiles, int base, int share, int state,
                                            const float* __restrict__ w, int ld,
                                            const float* __restrict__ bias, Part part) {
  for_states<SHAPE, STATES, ACROSS, TILES, SHARES>(
      tiles, base, share, state, ld, part, [&](int place, long long index, bool of_bias) {
        kept[place] = index < 0 ? 0.0f : of_bias ? bias[index] : w[index];
      });
}

// Null for `bias` leaves that to another block.
template <typename SHAPE, int STATES, int ACROSS, int TILES, int SHARES>
__device__ __forceinline__ void store_states(const float* kept, int tiles, int base, int share,
                                             int state, float* __restrict__ w, int ld,
                                             float* __restrict__ bias, Part part) {
  for_states<SHAPE, STATES, ACROSS, TILES, SHARES>(
      tiles, base, share, state, ld, part, [&](int place, long long index, bool of_bias) {
        float* const to = of_bias ? bias : w;
        if (index >= 0 && to != nullptr) to[index] = kept[place];
      });
}
