// Gradients of clusters that share the batch, added up through global memory (the L2 cache) in the
// order of the clusters, tile by tile: either every cluster sums and updates all, or each its share,
// and then all copy the new weights.
#pragma once
#include "onchip_update.cuh"

// Finish of a weight gradient's product: this cluster's part, for the others to see.
template <int ACROSS, int TILES>
struct PublishTiles {
  struct Early {};
  float4* tiles;  // of this block and layer

  __device__ __forceinline__ Early early(int, int) const { return {}; }
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4],
                                        const Early&) const {
    __stcg(tiles + (mt * ACROSS + nt) * kTileQuads + lane_index(),
           make_float4(sum[0], sum[1], sum[2], sum[3]));
  }
  __device__ __forceinline__ void sums(int nt, float first, float second) const {
    const int place = nt * 8 + lane_index() % 4 * 2;
    __stcg(reinterpret_cast<float2*>(reinterpret_cast<float*>(tiles + TILES * kTileQuads) + place),
           make_float2(first, second));
  }
};

// The same of a micro-batch: from the second one on (`adds`) it is added to what this very thread left
// there of those before.
template <int ACROSS, int TILES>
struct AddTiles {
  using Early = float4;
  float4* tiles;
  bool adds;

  __device__ __forceinline__ Early early(int mt, int nt) const {
    if (!adds) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return __ldcg(tiles + (mt * ACROSS + nt) * kTileQuads + lane_index());
  }
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4],
                                        const Early& before) const {
    __stcg(tiles + (mt * ACROSS + nt) * kTileQuads + lane_index(),
           make_float4(before.x + sum[0], before.y + sum[1], before.z + sum[2], before.w + sum[3]));
  }
  __device__ __forceinline__ void sums(int nt, float first, float second) const {
    const int place = nt * 8 + lane_index() % 4 * 2;
    auto* const at =
        reinterpret_cast<float2*>(reinterpret_cast<float*>(tiles + TILES * kTileQuads) + place);
    const float2 before = adds ? __ldcg(at) : make_float2(0.0f, 0.0f);
    __stcg(at, make_float2(before.x + first, before.y + second));
  }
};

__device__ __forceinline__ void accumulate(float (&sum)[4], const float4& v) {
  sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
}

// Adds up a lane's part of a tile over the clusters from `first` to `end`.
__device__ __forceinline__ void sum_groups(float (&sum)[4], const float4* part, long long stride,
                                           int first, int end) {
#pragma unroll 8
  for (int group = first; group < end; ++group) accumulate(sum, __ldcg(part + group * stride));
}

// Every cluster updates everything: `parts` is this rank's first tile of cluster 0, whose tiles lie
// `stride` float4 ahead of the next cluster's. place(tile) says where a tile's weights lie,
// state(tile) where its state does, how(tile) how its weights are kept (onchip_update.cuh).
template <typename SHAPE, typename RULE, bool FAR, int TILES, typename P, typename Q,
          typename H = AllAsTheyAre>
__device__ __forceinline__ void update_all(const float4* parts, long long stride, const RULE& rule,
                                           P place, Q state, H how = {}) {
  const int lane = lane_index();
#pragma unroll 1
  for (int tile = warp_index(); tile < TILES; tile += SHAPE::kThreads / 32) {
    Kept<RULE, FAR> kept;
    kept.load(state(tile) + lane);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    sum_groups(sum, parts + tile * kTileQuads + lane, stride, 0, SHAPE::kGroups);
    const Place at = place(tile);
    kept.update(rule, at.first, at.second, sum, how(tile));
    kept.store(state(tile) + lane);
  }
}

// Each cluster updates every kGroups-th tile and leaves the new weights in `fresh`. SHARES warps
// share the clusters of a tile; `scratch` holds their sums, kTileFloats each, where they are several.
template <typename SHAPE, typename RULE, bool FAR, int TILES, int SHARES, typename P, typename Q,
          typename H = AllAsTheyAre>
__device__ __forceinline__ void update_share(const float4* parts, long long stride,
                                             const RULE& rule, int group, float* scratch,
                                             float4* fresh, P place, Q state, H how = {}) {
  constexpr int mine = ceil_div(TILES, SHAPE::kGroups);
  constexpr int each = ceil_div(SHAPE::kGroups, SHARES);
  const int lane = lane_index();
  const int warp = warp_index();
  if constexpr (SHARES > 1) {
#pragma unroll 1
    for (int item = warp; item < mine * SHARES; item += SHAPE::kThreads / 32) {
      const int tile = group + item / SHARES * SHAPE::kGroups;
      if (tile < TILES) {
        const int first = item % SHARES * each;
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        sum_groups(sum, parts + tile * kTileQuads + lane, stride, first,
                   min(SHAPE::kGroups, first + each));
        *reinterpret_cast<float4*>(scratch + item * kTileFloats + lane * 4) =
            make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll 1
  for (int slot = warp; slot < mine; slot += SHAPE::kThreads / 32) {
    const int tile = group + slot * SHAPE::kGroups;
    if (tile < TILES) {
      Kept<RULE, FAR> kept;
      kept.load(state(slot) + lane);
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      if constexpr (SHARES == 1) {
        sum_groups(sum, parts + tile * kTileQuads + lane, stride, 0, SHAPE::kGroups);
      } else {
#pragma unroll
        for (int share = 0; share < SHARES; ++share) {
          accumulate(sum, *reinterpret_cast<const float4*>(
                              scratch + (slot * SHARES + share) * kTileFloats + lane * 4));
        }
      }
      const Place at = place(tile);
      kept.update(rule, at.first, at.second, sum, how(tile));
      kept.store(state(slot) + lane);
      float4 v = make_float4(at.first[0], at.first[1], 0.0f, 0.0f);
      if (at.second != nullptr) v.z = at.second[0], v.w = at.second[1];
      __stcg(fresh + tile * kTileQuads + lane, v);
    }
  }
}

// The new weights of all clusters. A load takes a round trip to the L2 cache, however many run at once:
// those of four tiles run ahead of the stores of four. (A load of a tile that is not there must not be
// one of another tile in its place: all blocks would ask for the same few lines.)
template <typename SHAPE, int TILES, typename P>
__device__ __forceinline__ void copy_fresh(const float4* fresh, P place) {
  constexpr int warps = SHAPE::kThreads / 32;
  constexpr int many = smaller(4, ceil_div(TILES, warps));
  const int lane = lane_index();
  float4 now[many], next[many];
  const auto load = [=](float4 (&to)[many], int first) {
#pragma unroll
    for (int i = 0; i < many; ++i) {
      to[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      const int tile = first + i * warps;
      if (tile < TILES) to[i] = __ldcg(fresh + tile * kTileQuads + lane);
    }
  };
  load(now, warp_index());
#pragma unroll 1
  for (int first = warp_index(); first < TILES; first += many * warps) {
    load(next, first + many * warps);
#pragma unroll
    for (int i = 0; i < many; ++i) {
      const int tile = first + i * warps;
      if (tile < TILES) {
        const Place at = place(tile);
        *reinterpret_cast<float2*>(at.first) = make_float2(now[i].x, now[i].y);
        if (at.second != nullptr) {
          *reinterpret_cast<float2*>(at.second) = make_float2(now[i].z, now[i].w);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < many; ++i) now[i] = next[i];
  }
}
