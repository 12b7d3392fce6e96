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

// Roots and quotients within two units in the last place, of numbers that are not subnormal: of Adam's 38
// instructions a weight 14 are a root and a quotient, and 5 of these for numbers at the ends of the range.
struct Approximate {
  static __device__ __forceinline__ float root(float x) { return ptx::approximate_sqrt(x); }
  static __device__ __forceinline__ float quotient(float a, float b) {
    return ptx::approximate_quotient(a, b);
  }
};

// An optimizer's rule as it is taken on the chip, where updates are bound by their instructions.
template <typename RULE>
struct OnChip {
  using Rule = RULE;
};

template <>
struct OnChip<Adam> {
  using Rule = AdamBy<Approximate>;
};

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

// body(output, input) for all of a part. Warps take 4 outputs x 8 inputs, so that rows of the matrix are
// met by whole sectors and those of the image by all banks.
template <typename SHAPE, typename F>
__device__ __forceinline__ void for_weights(Part part, F body) {
  constexpr int warps = SHAPE::kThreads / 32;
  const int across = ceil_div(part.ins, 8);
  const int down = ceil_div(part.outs, 4);
  if (across == 0) return;
  const int lane = lane_index();
  int row = warp_index() / across;
  int column = warp_index() % across;
#pragma unroll 1
  while (row < down) {
    const int out = row * 4 + lane / 8;
    const int in = column * 8 + lane % 8;
    if (out < part.outs && in < part.ins) body(out, in);
    row += warps / across, column += warps % across;
    if (column >= across) ++row, column -= across;
  }
}

// Asks for a part, where it is not read as another type: in shared memory behind wait_for_copies, so that
// all layers' round trips to memory are one.
template <typename SHAPE, int LDW, typename T>
__device__ __forceinline__ void load_weights(float* image, const T* __restrict__ w, int ld,
                                             Part part) {
  for_weights<SHAPE>(part, [=](int out, int in) {
    const T* const from = w + static_cast<long long>(part.out + out) * ld + part.in + in;
    float* const to = image + in * LDW + out;
    if constexpr (sizeof(T) == sizeof(float)) {
      ptx::copy_async<4>(ptx::shared_address(to), from);
    } else {
      *to = to_float(*from);
    }
  });
}

template <typename SHAPE, int LDW, typename T>
__device__ __forceinline__ void store_weights_as(T* __restrict__ w, int ld, const float* image,
                                                 Part part) {
  for_weights<SHAPE>(part, [=](int out, int in) {
    w[static_cast<long long>(part.out + out) * ld + part.in + in] =
        from_float<T>(image[in * LDW + out]);
  });
}

// For a lane's part of each tile of a layer's state, of which only each SHARES-th is kept, beginning with
// the one that is `share` when counted from `base`: body(the place of its first float, whether it is of
// biases, the index of one in the tensor, how far behind it each of the four is, -1 for padding).
template <typename SHAPE, int STATES, int ACROSS, int TILES, int SHARES, typename F>
__device__ __forceinline__ void for_states(int tiles, int base, int share, int state, int ld,
                                           Part part, F body) {
  const int lane = lane_index();
  const int skipped = ((share - base) % SHARES + SHARES) % SHARES;
#pragma unroll 1
  for (int tile = skipped + warp_index() * SHARES; tile < tiles;
       tile += SHAPE::kThreads / 32 * SHARES) {
    const bool of_bias = tile >= TILES;
    const int in = of_bias ? 0 : tile / ACROSS * 16 + lane / 4;
    const int out = of_bias ? (tile - TILES) * kTileFloats + lane * 4
                            : tile % ACROSS * 8 + lane % 4 * 2;
    const long long first =
        of_bias ? part.out + out : static_cast<long long>(part.out + out) * ld + part.in + in;
    int behind[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      // A block without inputs of its own has all biases, too.
      const bool there = of_bias ? out + q < part.outs
                                 : out + q % 2 < part.outs && in + q / 2 * 8 < part.ins;
      behind[q] = !there ? -1 : of_bias ? q : q % 2 * ld + q / 2 * 8;
    }
    const int slot = SHARES > 1 ? (base + tile) / SHARES : tile;
    body((slot * STATES + state) * kTileFloats + lane * 4, of_bias, first, behind);
  }
}

// Asks for state that lies in shared memory, which holds zeros; fills up what lies in a workspace (FAR).
template <typename SHAPE, bool FAR, int STATES, int ACROSS, int TILES, int SHARES>
__device__ __forceinline__ void load_states(float* kept, int tiles, int base, int share, int state,
                                            const float* __restrict__ w, int ld,
                                            const float* __restrict__ bias, Part part) {
  for_states<SHAPE, STATES, ACROSS, TILES, SHARES>(
      tiles, base, share, state, ld, part,
      [=](int place, bool of_bias, long long first, const int (&behind)[4]) {
        const float* const from = (of_bias ? bias : w) + first;
        float values[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          if constexpr (FAR) {
            values[q] = behind[q] < 0 ? 0.0f : from[behind[q]];
          } else if (behind[q] >= 0) {
            ptx::copy_async<4>(ptx::shared_address(kept + place + q), from + behind[q]);
          }
        }
        if constexpr (FAR) {
          *reinterpret_cast<float4*>(kept + place) =
              make_float4(values[0], values[1], values[2], values[3]);
        }
      });
}

// Null for `bias` leaves that to another block.
template <typename SHAPE, int STATES, int ACROSS, int TILES, int SHARES>
__device__ __forceinline__ void store_states(const float* kept, int tiles, int base, int share,
                                             int state, float* __restrict__ w, int ld,
                                             float* __restrict__ bias, Part part) {
  for_states<SHAPE, STATES, ACROSS, TILES, SHARES>(
      tiles, base, share, state, ld, part,
      [=](int place, bool of_bias, long long first, const int (&behind)[4]) {
        float* const to = of_bias ? bias : w;
        float values[4];
        spread(values, *reinterpret_cast<const float4*>(kept + place));
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          if (behind[q] >= 0 && to != nullptr) to[first + behind[q]] = values[q];
        }
      });
}
