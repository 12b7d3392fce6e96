// Gradients of clusters that share the batch, added up through global memory (the L2 cache) in the
// order of the clusters, tile by tile: either every cluster sums and updates all, or each its share,
// and all others take the new weights from it.
//
// No block waits for another at a barrier: a tile is handed over in words of three floats and a stamp
// (device/stamps.cuh), and whoever sums it waits for its words alone, some 1,100 cycles behind their
// stores. A tile takes kTileWords: word `lane` has the first three floats of that lane's part, word
// 32 + i the fourth ones of the lanes 3i .. 3i + 2. A gradient of biases comes in eights: three words
// for each. The stamp counts the micro-batches (or steps) since the workspace was new, so that a word
// of an earlier step is not taken for this one's, and one that may still be read is not stored over:
//   all    two workspaces take turns: who stores in one again has had all words of the step between,
//          which were stored by those who had read the first
//   share  a tile is stored again by those who have had its new weights, and new weights are by the
//          one who has had all its tiles again
#pragma once
#include "device/stamps.cuh"
#include "onchip_update.cuh"

constexpr int kTileWords = 48;

__device__ __forceinline__ int lane_here() { return ptx::made_here(lane_index()); }


// A lane's four floats as words, and back; for all lanes together.
struct LaneWords {
  float tail[3];  // of word 32 + lane, for the first kTails lanes
  static constexpr int kTails = 11;
  static __device__ __forceinline__ int tail_word() { return 32 + min(lane_here(), kTails - 1); }

  static __device__ __forceinline__ LaneWords of(float fourth) {
    LaneWords found;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      found.tail[i] = __shfl_sync(kFullWarp, fourth, min(3 * lane_here() + i, 31));
    }
    return found;
  }
  static __device__ __forceinline__ float fourth(const float (&tail)[3]) {
    const int from = lane_here() / 3;
    const float x = __shfl_sync(kFullWarp, tail[0], from);
    const float y = __shfl_sync(kFullWarp, tail[1], from);
    const float z = __shfl_sync(kFullWarp, tail[2], from);
    const int which = lane_here() % 3;
    return which == 0 ? x : which == 1 ? y : z;
  }
};

__device__ __forceinline__ void store_tile(ptx::Stamped* tile, const float (&v)[4],
                                           unsigned int stamp) {
  const int lane = lane_here();
  const LaneWords words = LaneWords::of(v[3]);
  ptx::store_stamped(tile + lane, v[0], v[1], v[2], stamp);
  if (lane < LaneWords::kTails) {
    ptx::store_stamped(tile + 32 + lane, words.tail[0], words.tail[1], words.tail[2], stamp);
  }
}

// Finish of a weight gradient's product: this cluster's part, for the others to see. That of a
// micro-batch from the second one on (ADDS and `adds`) is added to what this very warp left there of
// those before.
template <int ACROSS, int TILES, bool ADDS = false>
struct PublishTiles {
  struct Early {
    ptx::Stamped head, tail;
  };
  ptx::Stamped* tiles;  // of this block and layer
  unsigned int stamp;
  bool adds;

  __device__ __forceinline__ Early early(int mt, int nt) const {
    Early before = {};
    if (ADDS && adds) {
      const ptx::Stamped* const tile = tiles + (mt * ACROSS + nt) * kTileWords;
      before.head = ptx::load_stamped(tile + lane_here());
      before.tail = ptx::load_stamped(tile + LaneWords::tail_word());
    }
    return before;
  }
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4],
                                        const Early& before) const {
    ptx::Stamped* const tile = tiles + (mt * ACROSS + nt) * kTileWords;
    if constexpr (ADDS) {
      const int lane = lane_here();
      const LaneWords words = LaneWords::of(sum[3]);
      ptx::store_stamped(tile + lane, before.head.x + sum[0], before.head.y + sum[1],
                         before.head.z + sum[2], stamp);
      if (lane < LaneWords::kTails) {
        ptx::store_stamped(tile + 32 + lane, before.tail.x + words.tail[0],
                           before.tail.y + words.tail[1], before.tail.z + words.tail[2], stamp);
      }
    } else {
      store_tile(tile, sum, stamp);
    }
  }
  __device__ __forceinline__ void sums(int nt, float first, float second) const {
    const int lane = lane_here();
    const float next = __shfl_sync(kFullWarp, first, (lane + 1) % 32);
    const float behind = __shfl_sync(kFullWarp, second, (lane + 1) % 32);
    if (lane >= 3) return;
    ptx::Stamped* const word =
        tiles + (TILES + nt / 16) * kTileWords + nt % 16 * 3 + lane;
    float v[3] = {lane == 0 ? first : lane == 1 ? second : next, lane == 0 ? second
                                                                 : lane == 1 ? next : behind,
                  lane == 0 ? next : lane == 1 ? behind : 0.0f};
    if (ADDS && adds) {
      const ptx::Stamped before = ptx::load_stamped(word);
      v[0] += before.x, v[1] += before.y, v[2] += before.z;
    }
    ptx::store_stamped(word, v[0], v[1], v[2], stamp);
  }
};

// Where a lane's part of a tile lies among its words: in two of them.
struct LanePlace {
  int first, second;
};

__device__ __forceinline__ LanePlace words_of(const Place& place) {
  const int lane = lane_here();
  if (place.eights == 0) return {lane, LaneWords::tail_word()};
  const int word = min(lane / 2, place.eights - 1) * 3 + lane % 2;
  return {word, word + 1};
}

// What a lane's two words say of its four floats; for all lanes together.
__device__ __forceinline__ void arrange(float (&to)[4], const float (&words)[2][3],
                                        const Place& place) {
  const int lane = lane_here();
  const float(&a)[3] = words[0];
  const float(&b)[3] = words[1];
  if (place.eights == 0) {
    to[0] = a[0], to[1] = a[1], to[2] = a[2], to[3] = LaneWords::fourth(b);
  } else {
    const bool odd = lane % 2 != 0;
    const bool here = lane / 2 < place.eights;
    to[0] = here ? (odd ? a[1] : a[0]) : 0.0f;
    to[1] = here ? (odd ? a[2] : a[1]) : 0.0f;
    to[2] = here ? (odd ? b[0] : a[2]) : 0.0f;
    to[3] = here ? (odd ? b[1] : b[0]) : 0.0f;
  }
}

constexpr int kWordsAtOnce = 12;  // that a thread waits for: 48 registers

// The sums of TILES tiles' words over GROUPS clusters, or as many as there are up to `end`, from
// `first` on. `parts` are the tiles of cluster 0, `stride` words ahead of the next cluster's.
template <int TILES, int GROUPS>
__device__ __forceinline__ void sum_words(float (&sum)[TILES][2][3],
                                          const ptx::Stamped* const (&parts)[TILES],
                                          const LanePlace (&at)[TILES], long long stride, int first,
                                          int end, unsigned int stamp, int what) {
  constexpr int most = larger(1, kWordsAtOnce / (2 * TILES));
  constexpr int at_once = ceil_div(GROUPS, ceil_div(GROUPS, most));
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
#pragma unroll
    for (int q = 0; q < 6; ++q) sum[i][q / 3][q % 3] = 0.0f;
  }
#pragma unroll 1
  for (int group = first; group < end; group += at_once) {
    ptx::Stamped words[TILES * at_once * 2];
    ptx::await_stamped(
        words,
        [&](int i) {
          const int tile = i / 2 % TILES;
          return parts[tile] + min(group + i / 2 / TILES, end - 1) * stride +
                 (i % 2 == 0 ? at[tile].first : at[tile].second);
        },
        stamp, what);
#pragma unroll
    for (int i = 0; i < TILES * at_once * 2; ++i) {
      if (group + i / 2 / TILES < end) {
        float(&to)[3] = sum[i / 2 % TILES][i % 2];
        to[0] += words[i].x, to[1] += words[i].y, to[2] += words[i].z;
      }
    }
  }
}

// How many tiles a warp takes at once, where it sums each over GROUPS clusters.
template <int GROUPS, int TILES>
__device__ __forceinline__ constexpr int tiles_at_once() {
  return larger(1, smaller(smaller(4, TILES), kWordsAtOnce / (2 * GROUPS)));
}

// Which of the clusters' words a trap is about; 1 is the counter at the end.
constexpr int kGradients = 2;
constexpr int kFresh = 3;
constexpr int kOverflows = 4;

// Every cluster updates the tiles from FIRST to END, the last first, whose gradients were published
// earlier. `parts` is this rank's tile 0 of cluster 0. place(tile) says where a tile's weights lie,
// state(tile) where its state does, how(tile) how its weights are kept (onchip_update.cuh).
template <typename SHAPE, typename RULE, bool FAR, int FIRST, int END, typename P, typename Q,
          typename H = AllAsTheyAre>
__device__ __forceinline__ void update_all(const ptx::Stamped* parts, long long stride,
                                           unsigned int stamp, const RULE& rule, P place, Q state,
                                           H how = {}) {
  constexpr int warps = SHAPE::kThreads / 32;
  constexpr int many = tiles_at_once<SHAPE::kGroups, ceil_div(END - FIRST, warps)>();
  const int lane = lane_here();
#pragma unroll 1
  for (int i = ptx::made_here(warp_index()); i < END - FIRST; i += many * warps) {
    Kept<RULE, FAR> kept[many];
    const ptx::Stamped* tiles[many];
    LanePlace at[many];
#pragma unroll
    for (int j = 0; j < many; ++j) {
      const int tile = END - 1 - min(i + j * warps, END - FIRST - 1);
      if (FAR && i + j * warps < END - FIRST) kept[j].load(state(tile) + lane);
      tiles[j] = parts + tile * kTileWords;
      at[j] = words_of(place(tile));
    }
    float sum[many][2][3];
    sum_words<many, SHAPE::kGroups>(sum, tiles, at, stride, 0, SHAPE::kGroups, stamp, kGradients);
#pragma unroll
    for (int j = 0; j < many; ++j) {
      if (i + j * warps >= END - FIRST) break;
      const int tile = END - 1 - i - j * warps;
      const Place to = place(tile);
      float gradient[4];
      arrange(gradient, sum[j], to);
      if constexpr (!FAR) kept[j].load(state(tile) + lane);
      kept[j].update(rule, to.first, to.second, gradient, how(tile));
      kept[j].store(state(tile) + lane);
    }
  }
}

// Each cluster updates every kGroups-th of the tiles from FIRST to END, the last first, and leaves the
// new weights in `fresh`. SHARES warps share the clusters of a tile; `scratch` holds their sums,
// kTileFloats each, where they are several: nobody may be at it, and all threads come here.
template <typename SHAPE, typename RULE, bool FAR, int FIRST, int END, int SHARES, typename P,
          typename Q, typename H = AllAsTheyAre>
__device__ __forceinline__ void update_share(const ptx::Stamped* parts, long long stride,
                                             unsigned int stamp, const RULE& rule, int group,
                                             float* scratch, ptx::Stamped* fresh, P place, Q state,
                                             H how = {}) {
  constexpr int warps = SHAPE::kThreads / 32;
  constexpr int groups = SHAPE::kGroups;
  constexpr int each = ceil_div(groups, SHARES);
  const int lane = lane_here();
  const int warp = ptx::made_here(warp_index());
  const int first = max(0, (FIRST - group + groups - 1) / groups);
  const int slots = max(0, (END - group + groups - 1) / groups - first);
  const auto tile_of = [=](int i) { return (first + slots - 1 - i) * groups + group; };
  if constexpr (SHARES > 1) {
#pragma unroll 1
    for (int item = warp; item < slots * SHARES; item += warps) {
      const int tile = tile_of(item / SHARES);
      const Place to = place(tile);
      const int begin = item % SHARES * each;
      const ptx::Stamped* const tiles[1] = {parts + tile * kTileWords};
      const LanePlace at[1] = {words_of(to)};
      float sum[1][2][3], part[4];
      sum_words<1, each>(sum, tiles, at, stride, begin, min(groups, begin + each), stamp,
                         kGradients);
      arrange(part, sum[0], to);
      *reinterpret_cast<float4*>(scratch + item * kTileFloats + lane * 4) =
          make_float4(part[0], part[1], part[2], part[3]);
    }
    __syncthreads();
  }
  constexpr int many =
      SHARES > 1 ? 1 : tiles_at_once<groups, ceil_div(ceil_div(END - FIRST, groups), warps)>();
#pragma unroll 1
  for (int i = warp; i < slots; i += many * warps) {
    Kept<RULE, FAR> kept[many];
    const ptx::Stamped* tiles[many];
    LanePlace at[many];
#pragma unroll
    for (int j = 0; j < many; ++j) {
      const int tile = tile_of(min(i + j * warps, slots - 1));
      if (FAR && i + j * warps < slots) kept[j].load(state(tile / groups) + lane);
      tiles[j] = parts + tile * kTileWords;
      at[j] = words_of(place(tile));
    }
    float sum[many][2][3];
    if constexpr (SHARES == 1) {
      sum_words<many, groups>(sum, tiles, at, stride, 0, groups, stamp, kGradients);
    }
#pragma unroll
    for (int j = 0; j < many; ++j) {
      if (i + j * warps >= slots) break;
      const int tile = tile_of(i + j * warps);
      const Place to = place(tile);
      float gradient[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      if constexpr (SHARES == 1) {
        arrange(gradient, sum[j], to);
      } else {
#pragma unroll
        for (int share = 0; share < SHARES; ++share) {
          const float4 v = *reinterpret_cast<const float4*>(
              scratch + (i * SHARES + share) * kTileFloats + lane * 4);
          gradient[0] += v.x, gradient[1] += v.y, gradient[2] += v.z, gradient[3] += v.w;
        }
      }
      if constexpr (!FAR) kept[j].load(state(tile / groups) + lane);
      kept[j].update(rule, to.first, to.second, gradient, how(tile));
      kept[j].store(state(tile / groups) + lane);
      float v[4] = {to.first[0], to.first[1], 0.0f, 0.0f};
      if (to.second != nullptr) v[2] = to.second[0], v[3] = to.second[1];
      store_tile(fresh + tile * kTileWords, v, stamp);
    }
  }
}

// The new weights of the tiles from FIRST to END that other clusters have updated.
template <typename SHAPE, int FIRST, int END, typename P>
__device__ __forceinline__ void copy_fresh(const ptx::Stamped* fresh, unsigned int stamp, int group,
                                           P place) {
  constexpr int warps = SHAPE::kThreads / 32;
  constexpr int groups = SHAPE::kGroups;
  constexpr int many = smaller(4, ceil_div(END - FIRST, warps));
  const int lane = lane_here();
  // Others' tiles are counted from the last one on.
  const int first = max(0, (FIRST - group + groups - 1) / groups);
  const int own = max(0, (END - group + groups - 1) / groups - first);
  const int count = END - FIRST - own;
  const int last_own = (first + own - 1) * groups + group;  // meaningless where there is none
  const auto tile_of = [=](int i) {
    const int behind = own > 0 ? END - 1 - last_own : END - FIRST;  // ahead of the first own one
    return END - 1 - i - (i < behind ? 0 : 1 + (i - behind) / (groups - 1));
  };
#pragma unroll 1
  for (int i = ptx::made_here(warp_index()); i < count; i += many * warps) {
    ptx::Stamped words[2 * many];
    ptx::await_stamped(
        words,
        [&](int j) {
          return fresh + tile_of(min(i + j / 2 * warps, count - 1)) * kTileWords +
                 (j % 2 == 0 ? lane : LaneWords::tail_word());
        },
        stamp, kFresh);
#pragma unroll
    for (int j = 0; j < many; ++j) {
      if (i + j * warps >= count) break;
      const Place to = place(tile_of(i + j * warps));
      const ptx::Stamped& head = words[2 * j];
      const float tail[3] = {words[2 * j + 1].x, words[2 * j + 1].y, words[2 * j + 1].z};
      *reinterpret_cast<float2*>(to.first) = make_float2(head.x, head.y);
      const float fourth = LaneWords::fourth(tail);
      if (to.second != nullptr) {
        *reinterpret_cast<float2*>(to.second) = make_float2(head.z, fourth);
      }
    }
  }
}
