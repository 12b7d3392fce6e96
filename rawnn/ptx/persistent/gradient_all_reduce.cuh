// Gradients of clusters that share the batch, added up through global memory (the L2 cache) in the
// order of the clusters, tile by tile: either every cluster sums and updates all, or each its share,
// and tells the others by how much the weights change.
// What is told is float32, or bfloat16 where products take that: a meeting of many tiles is bound by bytes.
// Nobody waits for a flag, and no store for those ahead of it: numbers carry marks (onchip_marks.cuh),
// and whoever wants some reads them until they have theirs. (A release behind the stores takes some
// 1,100 cycles of an H200, the flag and the first loads behind it 1,700.) New weights are the same in
// all clusters to the last bit: a change is told without its mark's bit, and its cluster adds what it
// tells. Of a change of less than half a float32 weight that bit is 0 anyway.
// A slot is written again once all have read it, though nobody says so. Where all sum, slots take turns
// from step to step: who writes one of two steps ago has found every cluster's gradients of the step
// between, left behind its sums of two steps ago. Where each sums its share, who writes a gradient's
// slot has found the last change of those weights, made of what lay there; who writes a change's slot
// has found this step's gradients of all clusters, left behind the last step's changes.
#pragma once
#include "persistent/epilogue.cuh"
#include "persistent/flag_bits.cuh"
#include "persistent/update.cuh"

constexpr int kGradients = 1, kChanges = 2, kOverflows = 4;  // names of the waits

// Finish of a weight gradient's product: this cluster's part, for the others to see, as V: float4 for four
// numbers in float32, uint2 in bfloat16.
template <int ACROSS, int TILES, typename V = float4>
struct PublishTiles {
  struct Early {};
  V* tiles;  // of this block and layer
  unsigned int mark;

  __device__ __forceinline__ Early early(int, int) const { return {}; }
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4],
                                        const Early&) const {
    tell(tiles + (mt * ACROSS + nt) * kTileQuads + lane_index(),
         make_float4(sum[0], sum[1], sum[2], sum[3]), mark);
  }
  __device__ __forceinline__ void sums(int nt, float first, float second) const {
    by_quads(nt, first, second, [&](int quad, const float4& v) {
      tell(tiles + TILES * kTileQuads + quad, v, mark);
    });
  }
};

// The same of a micro-batch: from the second one on (`adds`) it is added to what this very thread left
// there of those before. All but the last leave it with the mark that it had.
template <int ACROSS, int TILES>
struct AddTiles {
  using Early = float4;
  float4* tiles;
  unsigned int mark;
  bool adds;

  __device__ __forceinline__ float4 before(const float4* at) const {
    if (!adds) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return without_mark(ptx::load_marked(at));
  }
  __device__ __forceinline__ void add(float4* at, const float4& a, const float4& b) const {
    tell(at, make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w), mark);
  }
  __device__ __forceinline__ Early early(int mt, int nt) const {
    return before(tiles + (mt * ACROSS + nt) * kTileQuads + lane_index());
  }
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4],
                                        const Early& early) const {
    add(tiles + (mt * ACROSS + nt) * kTileQuads + lane_index(), early,
        make_float4(sum[0], sum[1], sum[2], sum[3]));
  }
  __device__ __forceinline__ void sums(int nt, float first, float second) const {
    by_quads(nt, first, second, [&](int quad, const float4& v) {
      float4* const at = tiles + TILES * kTileQuads + quad;
      add(at, before(at), v);
    });
  }
};

__device__ __forceinline__ void accumulate(float (&sum)[4], const float4& v) {
  sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
}

// Adds up a lane's part of a tile over the clusters from `first` to `end`, MOST of them at most, once
// they have come.
template <int MOST, typename V>
__device__ __forceinline__ void sum_groups(float (&sum)[4], const V* part, long long stride,
                                           unsigned int mark, int first, int end) {
  constexpr int once = ceil_div(MOST, ceil_div(MOST, 16));
#pragma unroll 1
  for (int group = first; group < end; group += once) {
    V v[once];
    hear(v, [=](int i) { return part + min(group + i, end - 1) * stride; }, mark, kGradients);
#pragma unroll
    for (int i = 0; i < once; ++i) {
      if (group + i < end) accumulate(sum, numbers_of(v[i]));
    }
    if constexpr (MOST == once) break;
  }
}

// The same of all GROUPS clusters for MANY tiles at once, a lane's part of which in cluster 0 is `of`.
template <int GROUPS, int MANY, typename V>
__device__ __forceinline__ void sum_tiles(float (&sums)[MANY][4], const V* const (&of)[MANY],
                                          long long stride, unsigned int mark) {
#pragma unroll
  for (int t = 0; t < MANY; ++t) sums[t][0] = sums[t][1] = sums[t][2] = sums[t][3] = 0.0f;
  if constexpr (MANY == 1) {
    sum_groups<GROUPS>(sums[0], of[0], stride, mark, 0, GROUPS);
  } else {
    V v[MANY * GROUPS];
    hear(v, [&](int i) { return of[i / GROUPS] + i % GROUPS * stride; }, mark, kGradients);
#pragma unroll
    for (int i = 0; i < MANY * GROUPS; ++i) accumulate(sums[i / GROUPS], numbers_of(v[i]));
  }
}

// Of the tiles that a warp has `each` of, those that it asks for at once: as many as nine loads bring,
// two of up to eight clusters, and two at most where state comes from far.
__device__ __forceinline__ constexpr int tiles_at_once(int each, int groups, bool far) {
  const int most = groups > 8 ? 1 : groups > 4 || far ? 2 : 9 / groups;
  return ceil_div(each, ceil_div(each, most));
}

// A lane's part of a tile of cluster 0; lanes that have none ask for the first's, which comes anyway.
template <typename V>
__device__ __forceinline__ const V* part_of(const V* parts, int tile, const Place& at) {
  return parts + tile * kTileQuads + (at.there ? lane_index() : 0);
}

// Every cluster updates everything, if the step counts: `parts` is this rank's first tile of cluster 0,
// whose tiles lie `stride` V ahead of the next cluster's. place(tile) says where a tile's weights
// lie, state(tile) where its state does, how(tile) how its weights are kept (onchip_update.cuh).
template <typename SHAPE, typename RULE, bool FAR, int TILES, typename V, typename P, typename Q,
          typename H = AllAsTheyAre>
__device__ __forceinline__ void update_all(const V* parts, long long stride, unsigned int mark,
                                           bool counts, const RULE& rule, P place, Q state,
                                           H how = {}) {
  constexpr int warps = SHAPE::kThreads / 32;
  constexpr int many = tiles_at_once(ceil_div(TILES, warps), SHAPE::kGroups, FAR);
  const int lane = lane_index();
#pragma unroll 1
  for (int first = warp_index(); first < TILES; first += many * warps) {
    Place at[many];
    const V* of[many];
    Kept<RULE, FAR> kept[FAR ? many : 1];
#pragma unroll
    for (int t = 0; t < many; ++t) {
      const int tile = first + t * warps < TILES ? first + t * warps : first;
      at[t] = place(tile);
      of[t] = part_of(parts, tile, at[t]);
      if constexpr (FAR) kept[t].load(state(tile) + lane);
    }
    float sums[many][4];
    sum_tiles<SHAPE::kGroups>(sums, of, stride, mark);
#pragma unroll
    for (int t = 0; t < many; ++t) {
      const int tile = first + t * warps;
      if (tile >= TILES) break;
      Kept<RULE, FAR>& own = kept[FAR ? t : 0];
      if (counts && at[t].there) {
        if constexpr (!FAR) own.load(state(tile) + lane);
        own.template update<SHAPE>(rule, at[t].first, at[t].below, sums[t], how(tile));
        own.store(state(tile) + lane);
      }
    }
    if constexpr (TILES <= many * warps) break;
  }
}

// What is told of a lane's weights: their change, or the new ones where those have bits to spare.
template <typename TILE>
__device__ __forceinline__ float4 to_tell(const float (&w)[4], const float (&next)[4],
                                          const TILE& kept) {
  if (kept.spares_bits()) return make_float4(next[0], next[1], next[2], next[3]);
  return make_float4(next[0] - w[0], next[1] - w[1], next[2] - w[2], next[3] - w[3]);
}

// The same arithmetic in every cluster, of the weights and of what was told without its mark.
template <typename SHAPE, typename TILE>
__device__ __forceinline__ void take_in(const Place& at, const float (&w)[4], const float4& told,
                                        const TILE& kept) {
  const float next[4] = {told.x + (kept.spares_bits() ? 0.0f : w[0]),
                         told.y + (kept.spares_bits() ? 0.0f : w[1]),
                         told.z + (kept.spares_bits() ? 0.0f : w[2]),
                         told.w + (kept.spares_bits() ? 0.0f : w[3])};
  write_weights<SHAPE>(next, at.first, at.below);
}

// Each cluster updates every kGroups-th tile and tells the others in `fresh`; of a step that does not
// count, that it has read all. SHARES warps share the clusters of a tile; `scratch` holds their sums,
// kTileFloats each, where they are several.
template <typename SHAPE, typename RULE, bool FAR, int TILES, int SHARES, typename V, typename P, typename Q,
          typename H = AllAsTheyAre>
__device__ __forceinline__ void update_share(const V* parts, long long stride,
                                             unsigned int mark, bool counts, const RULE& rule,
                                             int group, float* scratch, V* fresh, P place,
                                             Q state, H how = {}) {
  constexpr int mine = ceil_div(TILES, SHAPE::kGroups);
  constexpr int each = ceil_div(SHAPE::kGroups, SHARES);
  const int lane = lane_index();
  const int warp = warp_index();
  constexpr int warps = SHAPE::kThreads / 32;
  if constexpr (SHARES > 1) {
#pragma unroll 1
    for (int item = warp; item < mine * SHARES; item += warps) {
      const int tile = group + item / SHARES * SHAPE::kGroups;
      if (tile < TILES) {
        const int first = item % SHARES * each;
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        sum_groups<each>(sum, part_of(parts, tile, place(tile)), stride, mark, first,
                         min(SHAPE::kGroups, first + each));
        *reinterpret_cast<float4*>(scratch + item * kTileFloats + lane * 4) =
            make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
      if constexpr (mine * SHARES <= warps) break;
    }
    __syncthreads();
  }
  constexpr int many = SHARES > 1 ? 1 : tiles_at_once(ceil_div(mine, warps), SHAPE::kGroups, FAR);
  const auto tile_of = [=](int slot) { return group + slot * SHAPE::kGroups; };
#pragma unroll 1
  for (int first = warp; tile_of(first) < TILES; first += many * warps) {
    Place at[many];
    const V* of[many];
    Kept<RULE, FAR> kept[FAR ? many : 1];
#pragma unroll
    for (int t = 0; t < many; ++t) {
      const int slot = tile_of(first + t * warps) < TILES ? first + t * warps : first;
      at[t] = place(tile_of(slot));
      of[t] = part_of(parts, tile_of(slot), at[t]);
      if constexpr (FAR) kept[t].load(state(slot) + lane);
    }
    float sums[many][4];
    if constexpr (SHARES == 1) {
      sum_tiles<SHAPE::kGroups>(sums, of, stride, mark);
    } else {
      sums[0][0] = sums[0][1] = sums[0][2] = sums[0][3] = 0.0f;
#pragma unroll
      for (int share = 0; share < SHARES; ++share) {
        accumulate(sums[0], *reinterpret_cast<const float4*>(
                                scratch + (first * SHARES + share) * kTileFloats + lane * 4));
      }
    }
#pragma unroll
    for (int t = 0; t < many; ++t) {
      const int slot = first + t * warps;
      const int tile = tile_of(slot);
      if (tile >= TILES) break;
      Kept<RULE, FAR>& own = kept[FAR ? t : 0];
      const auto way = how(tile);
      float w[4];
      read_weights(w, at[t].first, at[t].below);
      V told = as_told<V>(make_float4(0.0f, 0.0f, 0.0f, 0.0f));
      if (counts && at[t].there) {
        if constexpr (!FAR) own.load(state(slot) + lane);
        float next[4];
        own.apply(next, rule, w, sums[t], way);
        own.store(state(slot) + lane);
        told = as_told<V>(to_tell(w, next, way));
      }
      ptx::store_marked(fresh + tile * kTileQuads + lane, told, mark);
      if (counts) take_in<SHAPE>(at[t], w, numbers_of(told), way);
    }
    if constexpr (mine <= many * warps) break;
  }
}

// What the other clusters tell. A load takes a round trip to the L2 cache, however many run at once.
template <typename SHAPE, int TILES, typename V, typename P, typename H = AllAsTheyAre>
__device__ __forceinline__ void hear_shares(const V* fresh, unsigned int mark, bool counts,
                                            int group, P place, H how = {}) {
  constexpr int warps = SHAPE::kThreads / 32;
  constexpr int others = SHAPE::kGroups - 1;
  constexpr int most = TILES / SHAPE::kGroups * others + smaller(TILES % SHAPE::kGroups, others);
  constexpr int many = ceil_div(ceil_div(most, warps), ceil_div(ceil_div(most, warps), 8));
  const V* const from = fresh + lane_index();
  // Of the tiles of others in their order. A warp that has fewer asks for its first again.
  const auto tile_of = [=](int item) {
    const int owner = item % others;
    return item / others * SHAPE::kGroups + owner + (owner >= group ? 1 : 0);
  };
#pragma unroll 1
  for (int first = warp_index() * many; tile_of(first) < TILES; first += many * warps) {
    int tiles[many];
    Place at[many];  // found while the numbers are on their way
    V told[many];
#pragma unroll
    for (int i = 0; i < many; ++i) {
      const int tile = tile_of(first + i);
      tiles[i] = tile < TILES ? tile : tile_of(first);
      at[i] = place(tiles[i]);
    }
    hear(told, [&](int i) { return from + tiles[i] * kTileQuads; }, mark, kChanges);
    if (counts) {
      float w[many][4];
#pragma unroll
      for (int i = 0; i < many; ++i) read_weights(w[i], at[i].first, at[i].below);
#pragma unroll
      for (int i = 0; i < many; ++i) take_in<SHAPE>(at[i], w[i], numbers_of(told[i]), how(tiles[i]));
    }
    if constexpr (most <= many * warps) break;
  }
}
