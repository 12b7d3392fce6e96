// Gradient all-reduce: the data-parallel groups sum their gradients through global memory (L2), tile by tile
// and in the order of the groups. Either every group sums and updates all tiles, or each group sums and
// updates its share of the tiles and publishes the changes of the weights. Values are sent as float32, or as
// bfloat16 if GEMMs read that: an all-reduce of many tiles is bound by bytes.
//
// Synchronisation: values carry flag bits (flag_bits.cuh), which a receiver polls. There are no fences.
//
// Equal weights: new weights are the same in all groups to the last bit. A group applies a change as it sends
// it, without the bit that the flag bit replaces, which is 0 anyway if a weight changes by less than half.
//
// Reuse: no group announces that it has read a slot. If all groups sum, slots alternate between even and odd
// steps. A group that writes step i has received all gradients of step i - 1, which the others sent after
// they had summed step i - 2. If each group sums its share, a group that writes the slot of a gradient has
// received the last change of those weights, which was computed from the slot. A group that writes the slot
// of a change has received the gradients of this step from all groups, which they sent after they had read
// the last changes.
#pragma once
#include "persistent/epilogue.cuh"
#include "persistent/flag_bits.cuh"
#include "persistent/update.cuh"

constexpr int kGradients = 1, kChanges = 2, kOverflows = 4;  // names of waits

// Epilogue of a weight gradient's GEMM: publishes the partial sums of this group. V is float4 for four values
// in float32, uint2 for four in bfloat16.
template <int ACROSS, int TILES, typename V = float4>
struct PublishTiles {
  struct Early {};
  V* tiles;  // of this block and layer
  unsigned int flag_bit;

  __device__ __forceinline__ Early early(int, int) const { return {}; }
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4],
                                        const Early&) const {
    send_flagged(tiles + (mt * ACROSS + nt) * kTileQuads + lane_index(),
                 make_float4(sum[0], sum[1], sum[2], sum[3]), flag_bit);
  }
  __device__ __forceinline__ void sums(int nt, float first, float second, bool there) const {
    by_quads(nt, first, second, there, [&](int quad, const float4& v) {
      send_flagged(tiles + TILES * kTileQuads + quad, v, flag_bit);
    });
  }
};

// The same for a micro-batch. From the second micro-batch on (`adds`) a thread adds its sums to those that it
// has stored before. All micro-batches but the last keep the flag bit of the step before.
template <int ACROSS, int TILES>
struct AccumulateTiles {
  using Early = float4;
  float4* tiles;
  unsigned int flag_bit;
  bool adds;

  __device__ __forceinline__ float4 before(const float4* at) const {
    if (!adds) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return without_flag_bit(ptx::load_flagged(at));
  }
  __device__ __forceinline__ void add(float4* at, const float4& a, const float4& b) const {
    send_flagged(at, make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w), flag_bit);
  }
  __device__ __forceinline__ Early early(int mt, int nt) const {
    return before(tiles + (mt * ACROSS + nt) * kTileQuads + lane_index());
  }
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4],
                                        const Early& early) const {
    add(tiles + (mt * ACROSS + nt) * kTileQuads + lane_index(), early,
        make_float4(sum[0], sum[1], sum[2], sum[3]));
  }
  __device__ __forceinline__ void sums(int nt, float first, float second, bool there) const {
    by_quads(nt, first, second, there, [&](int quad, const float4& v) {
      float4* const at = tiles + TILES * kTileQuads + quad;
      add(at, before(at), v);
    });
  }
};

__device__ __forceinline__ void accumulate(float (&sum)[4], const float4& v) {
  sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
}

// Receives and sums a lane's part of a tile over the groups from `first` to `end`, at most MOST of them.
template <int MOST, typename V>
__device__ __forceinline__ void sum_groups(float (&sum)[4], const V* part, long long stride,
                                           unsigned int flag_bit, int first, int end) {
  constexpr int once = ceil_div(MOST, ceil_div(MOST, 16));
#pragma unroll 1
  for (int group = first; group < end; group += once) {
    V v[once];
    receive_flagged(v, [=](int i) { return part + min(group + i, end - 1) * stride; }, flag_bit, kGradients);
#pragma unroll
    for (int i = 0; i < once; ++i) {
      if (group + i < end) accumulate(sum, decode(v[i]));
    }
    if constexpr (MOST == once) break;
  }
}

// The same over all GROUPS groups for MANY tiles at once. `of` is the lane's part of each in group 0.
template <int GROUPS, int MANY, typename V>
__device__ __forceinline__ void sum_tiles(float (&sums)[MANY][4], const V* const (&of)[MANY],
                                          long long stride, unsigned int flag_bit) {
#pragma unroll
  for (int t = 0; t < MANY; ++t) sums[t][0] = sums[t][1] = sums[t][2] = sums[t][3] = 0.0f;
  if constexpr (MANY == 1) {
    sum_groups<GROUPS>(sums[0], of[0], stride, flag_bit, 0, GROUPS);
  } else {
    V v[MANY * GROUPS];
    receive_flagged(v, [&](int i) { return of[i / GROUPS] + i % GROUPS * stride; }, flag_bit, kGradients);
#pragma unroll
    for (int i = 0; i < MANY * GROUPS; ++i) accumulate(sums[i / GROUPS], decode(v[i]));
  }
}

// Tiles that a warp loads at once, if it has `each` tiles: as many as nine loads bring, two of up to eight
// groups, and at most two if the optimizer state is in global memory (`global`).
__device__ __forceinline__ constexpr int tiles_at_once(int each, int groups, bool global) {
  const int most = groups > 8 ? 1 : groups > 4 || global ? 2 : 9 / groups;
  return ceil_div(each, ceil_div(each, most));
}

// A lane's part of a tile in group 0. A lane without a part polls the part of lane 0, which arrives anyway.
template <typename V>
__device__ __forceinline__ const V* part_of(const V* parts, int tile, const Place& at) {
  return parts + tile * kTileQuads + (at.there ? lane_index() : 0);
}

// Every group updates all tiles, if the step `counts`. `parts` is the first tile of this tp_rank in group 0;
// the tiles of the next group begin `stride` V further on. place(tile) is the place of a tile's weights,
// state(tile) of its optimizer state, and how(tile) says how its weights are stored (update.cuh).
template <typename SHAPE, typename RULE, bool GLOBAL, int TILES, typename V, typename P, typename Q,
          typename H = NoRoundingOfTiles>
__device__ __forceinline__ void update_all(const V* parts, long long stride, unsigned int flag_bit,
                                           bool counts, const RULE& rule, P place, Q state,
                                           H how = {}) {
  constexpr int warps = SHAPE::kThreads / 32;
  constexpr int many = tiles_at_once(ceil_div(TILES, warps), SHAPE::kDpSize, GLOBAL);
  const int lane = lane_index();
#pragma unroll 1
  for (int first = warp_index(); first < TILES; first += many * warps) {
    Place at[many];
    const V* of[many];
    TileState<RULE, GLOBAL> kept[GLOBAL ? many : 1];
#pragma unroll
    for (int t = 0; t < many; ++t) {
      const int tile = first + t * warps < TILES ? first + t * warps : first;
      at[t] = place(tile);
      of[t] = part_of(parts, tile, at[t]);
      if constexpr (GLOBAL) kept[t].load(state(tile) + lane);
    }
    float sums[many][4];
    sum_tiles<SHAPE::kDpSize>(sums, of, stride, flag_bit);
#pragma unroll
    for (int t = 0; t < many; ++t) {
      const int tile = first + t * warps;
      if (tile >= TILES) break;
      TileState<RULE, GLOBAL>& own = kept[GLOBAL ? t : 0];
      if (counts && at[t].there) {
        if constexpr (!GLOBAL) own.load(state(tile) + lane);
        own.template update<SHAPE>(rule, at[t].first, at[t].below, sums[t], how(tile));
        own.store(state(tile) + lane);
      }
    }
    if constexpr (TILES <= many * warps) break;
  }
}

// What a lane publishes of its weights: their change, or the new weights if these have bits to spare.
template <typename TILE>
__device__ __forceinline__ float4 change_of(const float (&w)[4], const float (&next)[4],
                                            const TILE& kept) {
  if (kept.has_spare_bits()) return make_float4(next[0], next[1], next[2], next[3]);
  return make_float4(next[0] - w[0], next[1] - w[1], next[2] - w[2], next[3] - w[3]);
}

// New weights from a received change: the same arithmetic in every group.
template <typename SHAPE, typename TILE>
__device__ __forceinline__ void apply_change(const Place& at, const float (&w)[4], const float4& change,
                                             const TILE& kept) {
  const float next[4] = {change.x + (kept.has_spare_bits() ? 0.0f : w[0]),
                         change.y + (kept.has_spare_bits() ? 0.0f : w[1]),
                         change.z + (kept.has_spare_bits() ? 0.0f : w[2]),
                         change.w + (kept.has_spare_bits() ? 0.0f : w[3])};
  write_weights<SHAPE>(next, at.first, at.below);
}

// Each group updates every kDpSize-th tile and publishes the changes in `weight_changes`. In a step that does
// not count it publishes zeros, which say that it has read all gradients. SHARES warps share the groups of a
// tile; if there are several, `scratch` holds their sums, kTileFloats each.
template <typename SHAPE, typename RULE, bool GLOBAL, int TILES, int SHARES, typename V, typename P, typename Q,
          typename H = NoRoundingOfTiles>
__device__ __forceinline__ void update_share(const V* parts, long long stride,
                                             unsigned int flag_bit, bool counts, const RULE& rule,
                                             int group, float* scratch, V* weight_changes, P place,
                                             Q state, H how = {}) {
  constexpr int mine = ceil_div(TILES, SHAPE::kDpSize);
  constexpr int each = ceil_div(SHAPE::kDpSize, SHARES);
  const int lane = lane_index();
  const int warp = warp_index();
  constexpr int warps = SHAPE::kThreads / 32;
  if constexpr (SHARES > 1) {
#pragma unroll 1
    for (int item = warp; item < mine * SHARES; item += warps) {
      const int tile = group + item / SHARES * SHAPE::kDpSize;
      if (tile < TILES) {
        const int first = item % SHARES * each;
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        sum_groups<each>(sum, part_of(parts, tile, place(tile)), stride, flag_bit, first,
                         min(SHAPE::kDpSize, first + each));
        *reinterpret_cast<float4*>(scratch + item * kTileFloats + lane * 4) =
            make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
      if constexpr (mine * SHARES <= warps) break;
    }
    __syncthreads();
  }
  constexpr int many = SHARES > 1 ? 1 : tiles_at_once(ceil_div(mine, warps), SHAPE::kDpSize, GLOBAL);
  const auto tile_of = [=](int slot) { return group + slot * SHAPE::kDpSize; };
#pragma unroll 1
  for (int first = warp; tile_of(first) < TILES; first += many * warps) {
    Place at[many];
    const V* of[many];
    TileState<RULE, GLOBAL> kept[GLOBAL ? many : 1];
#pragma unroll
    for (int t = 0; t < many; ++t) {
      const int slot = tile_of(first + t * warps) < TILES ? first + t * warps : first;
      at[t] = place(tile_of(slot));
      of[t] = part_of(parts, tile_of(slot), at[t]);
      if constexpr (GLOBAL) kept[t].load(state(slot) + lane);
    }
    float sums[many][4];
    if constexpr (SHARES == 1) {
      sum_tiles<SHAPE::kDpSize>(sums, of, stride, flag_bit);
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
      TileState<RULE, GLOBAL>& own = kept[GLOBAL ? t : 0];
      const auto way = how(tile);
      float w[4];
      read_weights(w, at[t].first, at[t].below);
      V change = encode<V>(make_float4(0.0f, 0.0f, 0.0f, 0.0f));
      if (counts && at[t].there) {
        if constexpr (!GLOBAL) own.load(state(slot) + lane);
        float next[4];
        own.apply(next, rule, w, sums[t], way);
        own.store(state(slot) + lane);
        change = encode<V>(change_of(w, next, way));
      }
      ptx::store_flagged(weight_changes + tile * kTileQuads + lane, change, flag_bit);
      if (counts) apply_change<SHAPE>(at[t], w, decode(change), way);
    }
    if constexpr (mine <= many * warps) break;
  }
}

// Receives the changes of the other groups and applies them.
template <typename SHAPE, int TILES, typename V, typename P, typename H = NoRoundingOfTiles>
__device__ __forceinline__ void receive_changes(const V* weight_changes, unsigned int flag_bit, bool counts,
                                                int group, P place, H how = {}) {
  constexpr int warps = SHAPE::kThreads / 32;
  constexpr int others = SHAPE::kDpSize - 1;
  constexpr int most = TILES / SHAPE::kDpSize * others + smaller(TILES % SHAPE::kDpSize, others);
  constexpr int many = ceil_div(ceil_div(most, warps), ceil_div(ceil_div(most, warps), 8));
  const V* const from = weight_changes + lane_index();
  // Tiles of the other groups in their order. A warp that has fewer loads its first tile again.
  const auto tile_of = [=](int item) {
    const int owner = item % others;
    return item / others * SHAPE::kDpSize + owner + (owner >= group ? 1 : 0);
  };
#pragma unroll 1
  for (int first = warp_index() * many; tile_of(first) < TILES; first += many * warps) {
    int tiles[many];
    Place at[many];  // looked up while the changes are in flight
    V change[many];
#pragma unroll
    for (int i = 0; i < many; ++i) {
      const int tile = tile_of(first + i);
      tiles[i] = tile < TILES ? tile : tile_of(first);
      at[i] = place(tiles[i]);
    }
    receive_flagged(change, [&](int i) { return from + tiles[i] * kTileQuads; }, flag_bit, kChanges);
    if (counts) {
      float w[many][4];
#pragma unroll
      for (int i = 0; i < many; ++i) read_weights(w[i], at[i].first, at[i].below);
#pragma unroll
      for (int i = 0; i < many; ++i) apply_change<SHAPE>(at[i], w[i], decode(change[i]), how(tiles[i]));
    }
    if constexpr (most <= many * warps) break;
  }
}
