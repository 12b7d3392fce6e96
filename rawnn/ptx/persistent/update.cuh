// Weights, biases and optimizer state in shared memory, and their update.
//
// The weights of a layer are stored transposed, [inputs, LDW] floats; its biases are contiguous. A gradient
// comes in tiles of 16 inputs x 8 outputs, as fragments: lane 4g + t has inputs g and g + 8 of the outputs 2t
// and 2t + 1. 128 biases form a tile too, in their order. Optimizer state has the order of the tiles,
// [tile][state][lane] of float4, so that a lane finds its own in one access. It lies in shared memory, or in
// a workspace in global memory (GLOBAL), which stays in L2.
//
// If GEMMs read 16 bits, a block keeps a copy of each weight in 16 bits: the copy of float p of shared memory
// is element p + SHAPE::kCopies of 16 bits, biases included. kCopies is 0 if there are no copies.
#pragma once
#include "persistent/values.cuh"
#include "persistent/epilogue.cuh"
#include "persistent/optimizer_steps.cuh"

constexpr int kTileFloats = 128;
constexpr int kTileQuads = 32;

__device__ __forceinline__ void spread(float (&to)[4], const float4& from) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

// A lane's two pairs of weights. The second begins `below` floats after the first; 0 means that there is
// none. (The compiler would not know that a pointer which may be null points to shared memory.)
__device__ __forceinline__ void read_weights(float (&w)[4], const float* first, int below) {
  const float2 upper = *reinterpret_cast<const float2*>(first);
  const float2 lower = below != 0 ? *reinterpret_cast<const float2*>(first + below)
                                  : make_float2(0.0f, 0.0f);
  w[0] = upper.x, w[1] = upper.y, w[2] = lower.x, w[3] = lower.y;
}

template <typename SHAPE>
__device__ __forceinline__ void write_weights(const float (&w)[4], float* first, int below) {
  *reinterpret_cast<float2*>(first) = make_float2(w[0], w[1]);
  if (below != 0) *reinterpret_cast<float2*>(first + below) = make_float2(w[2], w[3]);
  if constexpr (SHAPE::kCopies != 0) {
    Half* const copy = ptx::dynamic_shared<Half>() + SHAPE::kCopies +
                       (first - ptx::dynamic_shared<float>());
    store_two<SHAPE>(copy, w[0], w[1]);
    if (below != 0) store_two<SHAPE>(copy + below, w[2], w[3]);
  }
}

// Copies the first `count` floats of shared memory to 16 bits.
template <typename SHAPE>
__device__ __forceinline__ void copy_weights(int count) {
  const float* const from = ptx::dynamic_shared<float>();
  Half* const to = ptx::dynamic_shared<Half>() + SHAPE::kCopies;
#pragma unroll 1
  for (int i = thread_index() * 4; i < count; i += SHAPE::kThreads * 4) {
    store_four<SHAPE>(to + i, *reinterpret_cast<const float4*>(from + i));
  }
}

// A lane's optimizer state of one tile, in registers.
template <typename RULE, bool GLOBAL>
struct TileState {
  static constexpr int kStates = RULE::kStates;
  float of[kStates > 0 ? kStates : 1][4];

  __device__ __forceinline__ void load(const float4* at) {
#pragma unroll
    for (int j = 0; j < kStates; ++j) {
      spread(of[j], GLOBAL ? __ldcg(at + j * kTileQuads) : at[j * kTileQuads]);
    }
  }
  __device__ __forceinline__ void store(float4* at) const {
#pragma unroll
    for (int j = 0; j < kStates; ++j) {
      const float4 v = make_float4(of[j][0], of[j][1], of[j][2], of[j][3]);
      if constexpr (GLOBAL) {
        __stcg(at + j * kTileQuads, v);
      } else {
        at[j * kTileQuads] = v;
      }
    }
  }
  // Computes new weights and new state. The optimizer steps of the four weights are independent chains.
  template <typename TILE = NoRounding>
  __device__ __forceinline__ void apply(float (&next)[4], const RULE& rule, const float (&w)[4],
                                        const float (&gradient)[4], const TILE& kept = {}) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float state[kStates > 0 ? kStates : 1];
#pragma unroll
      for (int j = 0; j < kStates; ++j) state[j] = of[j][q];
      next[q] = kept(rule(w[q], gradient[q], state), q);
#pragma unroll
      for (int j = 0; j < kStates; ++j) of[j][q] = state[j];
    }
  }
  // The same in place, for the lane's weights in shared memory. All are loaded ahead of the first store.
  template <typename SHAPE, typename TILE = NoRounding>
  __device__ __forceinline__ void update(const RULE& rule, float* first, int below,
                                         const float (&gradient)[4], const TILE& kept = {}) {
    float w[4], next[4];
    read_weights(w, first, below);
    apply(next, rule, w, gradient, kept);
    write_weights<SHAPE>(next, first, below);
  }
};

// Epilogue of a weight gradient's GEMM: the update at once, if there is one data-parallel group. Where state of
// weights is not in memory (held_tiles.cuh), TILES is 0: the tiles there are of biases alone. State in global
// memory is loaded ahead of the GEMM, or behind it (LATE) where registers hold state of other layers. That in
// shared memory is loaded with the weights for a row of tiles, ahead of the row's stores, which no load passes.
template <typename SHAPE, typename RULE, bool GLOBAL, int LDW, int ROWS, int ACROSS, int TILES,
          bool LATE = false, typename HOW = NoRounding>
struct UpdateTiles {
  using State = TileState<RULE, GLOBAL>;
  struct Early {
    State state;
    float weights[4];  // of state in shared memory
  };
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
    kept.state.load(state_of(mt * ACROSS + nt) + lane_index());
    if constexpr (!GLOBAL) read(kept.weights, mt, nt);
    return kept;
  }
  // A lane's weights of a tile, and their distance.
  __device__ __forceinline__ float* weights_at(int mt, int nt) const {
    const int lane = lane_index();
    return w + (mt * 16 + lane / 4) * LDW + nt * 8 + lane % 4 * 2;
  }
  static __device__ __forceinline__ int below(int mt) {
    return ROWS % 16 == 0 || mt * 16 + 8 < ROWS ? 8 * LDW : 0;
  }
  __device__ __forceinline__ void read(float (&weights)[4], int mt, int nt) const {
    read_weights(weights, weights_at(mt, nt), below(mt));
  }
  // The update of weights that have been read.
  __device__ __forceinline__ void update(State& kept, int mt, int nt, const float (&sum)[4],
                                         const float (&weights)[4], float (&next)[4]) const {
    kept.apply(next, rule, weights, sum, how.tile(mt, nt));
    write_weights<SHAPE>(next, weights_at(mt, nt), below(mt));
  }
  __device__ __forceinline__ void store(int part, int mt, int nt, const float (&sum)[4],
                                        const Early& early) const {
    float next[4];
    store(part, mt, nt, sum, early, next);
  }
  // The same, which leaves the new weights in `next`.
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4], const Early& early,
                                        float (&next)[4]) const {
    Early kept = early;
    if constexpr (GLOBAL) read(kept.weights, mt, nt);
    update(kept.state, mt, nt, sum, kept.weights, next);
    kept.state.store(state_of(mt * ACROSS + nt) + lane_index());
  }
  __device__ __forceinline__ void sums(int nt, float first, float second, bool there) const {
    if (!there) return;
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
        kept[i][j] = GLOBAL ? __ldcg(state + j * kTileFloats + i) : state[j * kTileFloats + i];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bias[place + i] = rule(w[i], gradient[i], kept[i]);
#pragma unroll
      for (int j = 0; j < RULE::kStates; ++j) {
        if constexpr (GLOBAL) {
          __stcg(state + j * kTileFloats + i, kept[i][j]);
        } else {
          state[j * kTileFloats + i] = kept[i][j];
        }
      }
    }
  }
};

template <typename SHAPE, typename RULE, bool GLOBAL, int LDW, int ROWS, int ACROSS, int TILES, typename HOW>
constexpr bool kIsLate<UpdateTiles<SHAPE, RULE, GLOBAL, LDW, ROWS, ACROSS, TILES, true, HOW>> = true;
template <typename SHAPE, typename RULE, int LDW, int ROWS, int ACROSS, int TILES, typename HOW>
constexpr bool kIsByRow<UpdateTiles<SHAPE, RULE, false, LDW, ROWS, ACROSS, TILES, false, HOW>> = true;

// The place of a lane's part of a tile: two pairs of weights, the second `below` floats after the first, or 0
// if it would be beyond the layer's rows. In a tile of biases, only lanes whose quad has columns of the
// layer's GEMM are `there`: the others have no gradient.
struct Place {
  float* first;
  int below;
  bool there;
};

// The place of a whole tile in eight bytes, for a table. Computing the layer, row and column of a tile takes
// a warp some 40 instructions, and instructions limit the gradient all-reduce.
//   x: floats from the start of the shared memory | floats from a row of the tile to the next << 16
//   y: floats to the second pairs | lanes that have a part << 16 | floats from pair to pair << 24
template <int LDW, int ROWS, int ACROSS, int TILES>
__device__ __forceinline__ uint2 place_of(int tile, unsigned int w, unsigned int bias) {
  if (tile >= TILES) {
    const unsigned int before = tile - TILES;
    const unsigned int quads = min(kTileQuads, ACROSS * 2 - static_cast<int>(before) * kTileQuads);
    return make_uint2((bias + before * kTileFloats) | 16u << 16, 2u | quads << 16 | 4u << 24);
  }
  const unsigned int row = tile / ACROSS * 16;
  const bool whole = ROWS % 16 == 0 || row < ROWS - 8;
  constexpr unsigned int pitch = LDW;
  return make_uint2((w + row * pitch + tile % ACROSS * 8) | pitch << 16,
                    (whole ? 8u * pitch : 0u) | 32u << 16 | 2u << 24);
}

__device__ __forceinline__ Place place_in(float* shared, uint2 tile) {
  const unsigned int lane = lane_index();
  const unsigned int at = (tile.x & 0xffffu) + lane / 4 * (tile.x >> 16) + lane % 4 * (tile.y >> 24);
  return {shared + at, static_cast<int>(tile.y & 0xffffu), lane < (tile.y >> 16 & 0xffu)};
}
