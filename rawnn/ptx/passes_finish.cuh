// What becomes of a product's sums in passes.cuh: values of the next layer, gradients, and the loss.
//
// Warps take turns of items (passes_product.cuh). A lane has of an item numbers of rows 2t and 2t + 1 at one
// unit of each of four blocks j; packed and turned they are a piece of 16 bytes of a row, which goes to
// where the next product finds it, in this block or in all of the cluster, and to memory. What a slope
// is taken at stays with the block, in the order of lanes.
#pragma once
#include "activations.cuh"
#include "device/barriers.cuh"
#include "device/cluster.cuh"
#include "losses.cuh"
#include "metrics.cuh"
#include "passes_product.cuh"
#include "softmax.cuh"

namespace passes {

// What a block knows of itself, and how far from its own the other blocks' shared memory lies.
template <typename SHAPE>
struct Here {
  unsigned char* shared;
  unsigned int at;  // its address
  int rank;
  int first;    // row of the batch
  int present;  // rows
  unsigned int apart[SHAPE::kRanks];

  __device__ __forceinline__ Here(unsigned char* memory, int number, int rows)
      : shared(memory), at(ptx::shared_address(memory)) {
    rank = SHAPE::kRanks == 1 ? 0 : number % SHAPE::kRanks;
    first = number / SHAPE::kRanks * SHAPE::kRows;
    present = min(SHAPE::kRows, rows - first);
#pragma unroll
    for (int i = 1; i < SHAPE::kRanks; ++i) {
      apart[i] = ptx::in_block(at, (rank + i) % SHAPE::kRanks) - at;
    }
  }
};

// A task as one block has it: its slice of the units, and where what it makes of sums goes.
template <typename SHAPE>
struct Part {
  using T = typename SHAPE::Element;
  const Here<SHAPE>& here;
  const Task<T> task;
  int begin_piece, pieces;
  unsigned int barrier;  // by which others count what is sent

  __device__ __forceinline__ Part(const Here<SHAPE>& of, const Task<T>& all, unsigned int counted)
      : here(of), task(all), barrier(counted) {
    begin_piece = sliced() ? here.rank * task.pieces / SHAPE::kRanks : 0;
    pieces = (sliced() ? (here.rank + 1) * task.pieces / SHAPE::kRanks : task.pieces) - begin_piece;
  }

  __device__ __forceinline__ bool sliced() const { return SHAPE::kRanks > 1 && task.sliced != 0; }
  __device__ __forceinline__ int first_unit() const { return begin_piece * kPiece<T>; }
  __device__ __forceinline__ bool exists(int unit) const {
    return first_unit() + unit < task.units;
  }
  // Behind the slice a tile has units of another block.
  __device__ __forceinline__ bool own(int unit) const {
    return exists(unit) && unit < pieces * kPiece<T>;
  }
  __device__ __forceinline__ const float* bias() const {
    return reinterpret_cast<const float*>(here.shared + task.bias);
  }
  __device__ __forceinline__ unsigned char* kept() const { return here.shared + task.kept; }

  // Calls body(item) for this warp's items of a round: those that exist, or ALL.
  template <bool ALL, typename BODY>
  __device__ __forceinline__ void for_items(int round, BODY body) const {
    const int thread = static_cast<int>(threadIdx.x);
    Item<SHAPE> item;
    item.lane = thread & 31;
#pragma unroll 1
    for (int i = thread / 32; i < task.groups * Item<SHAPE>::kEights; i += SHAPE::kWarps) {
      item.number = i;
      item.tile = round * task.groups + i / Item<SHAPE>::kEights;
      item.eight = i % Item<SHAPE>::kEights;
      if (!ALL && item.tile * kOfTile<T> >= pieces) break;
      body(item);
    }
  }

  __device__ __forceinline__ void deliver_piece(int piece, int row, bool mine,
                                                const unsigned int (&words)[4]) const {
    if (piece >= pieces) return;
    const int of_all = begin_piece + piece;
    if (task.to != 0) {
      const unsigned int place = here.at + task.to + row * task.pitch_to + of_all * 16;
      ptx::store_shared(place, words);
      if (sliced()) {
        const float4 value = make_float4(__uint_as_float(words[0]), __uint_as_float(words[1]),
                                         __uint_as_float(words[2]), __uint_as_float(words[3]));
#pragma unroll
        for (int i = 1; i < SHAPE::kRanks; ++i) {
          ptx::send4(place + here.apart[i], value, barrier + here.apart[i]);
        }
      }
    }
    if (mine && row < here.present && of_all * kPiece<T> < task.units) {
      store_words(at(task.memory, task.ld, here.first + row, of_all * kPiece<T>), words);
    }
  }

  // An item's numbers, made what goes on.
  __device__ __forceinline__ void deliver(const Item<SHAPE>& item) const {
    // Of what all blocks have each stores a part.
    const bool mine = sliced() || SHAPE::kRanks == 1 || item.eight % SHAPE::kRanks == here.rank;
    const int g = item.lane / 4;
    const int t = item.lane % 4;
    unsigned int words[4];
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        words[j] = ptx::transpose_matrix(pack_pair<T>(item.v[j][0], item.v[j][1]));
      }
      deliver_piece(item.tile * kOfTile<T> + t, 8 * item.eight + g, mine, words);
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = __float_as_uint(item.v[j][e]);
        deliver_piece(item.tile * kOfTile<T> + g, item.row(e), mine, words);
      }
    }
  }
};

// Once all of this block's part is under way: returns with the `bytes` that the others send.
__device__ __forceinline__ void meet(unsigned int barrier, int parity, int bytes) {
  __syncwarp();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    ptx::arrive_expecting(barrier, bytes);
  } else if (thread % 32 == 0) {
    ptx::arrive(barrier);
  }
  ptx::wait_for(barrier, parity);
}

// What slopes are taken at: of Relu whether it is above 0, of others the number as a T.
template <typename ACTIVATION>
constexpr bool kKeepsInput = false;
template <>
constexpr bool kKeepsInput<Gelu> = true;

template <typename ACTIVATION, typename T>
struct Kept {
  unsigned int words[sizeof(T) == 2 ? 4 : 8];
  __device__ __forceinline__ void put(int j, const float (&v)[2]) {
    if constexpr (sizeof(T) == 2) {
      words[j] = pack_pair<T>(v[0], v[1]);
    } else {
      words[2 * j] = __float_as_uint(v[0]);
      words[2 * j + 1] = __float_as_uint(v[1]);
    }
  }
  __device__ __forceinline__ float2 get(int j) const {
    if constexpr (sizeof(T) == 2) {
      return unpack_pair<T>(words[j]);
    } else {
      return make_float2(__uint_as_float(words[2 * j]), __uint_as_float(words[2 * j + 1]));
    }
  }
  static constexpr int kBytes = static_cast<int>(sizeof(words));
  __device__ __forceinline__ void store(unsigned char* kept, int place) const {
    store_words(kept + place * kBytes, words);
  }
  __device__ __forceinline__ void load(const unsigned char* kept, int place) {
    load_words(words, kept + place * kBytes);
  }
};

template <typename T>
struct Kept<Relu, T> {
  unsigned char bits = 0;
  __device__ __forceinline__ void put(int j, const float (&v)[2]) {
    bits = static_cast<unsigned char>(bits | (v[0] > 0.0f ? 1 << (2 * j) : 0) |
                                      (v[1] > 0.0f ? 2 << (2 * j) : 0));
  }
  __device__ __forceinline__ float2 get(int j) const {
    return make_float2((bits >> (2 * j) & 1) != 0 ? 1.0f : 0.0f,
                       (bits >> (2 * j) & 2) != 0 ? 1.0f : 0.0f);
  }
  static constexpr int kBytes = 1;
  __device__ __forceinline__ void store(unsigned char* kept, int place) const {
    kept[place] = bits;
  }
  __device__ __forceinline__ void load(const unsigned char* kept, int place) { bits = kept[place]; }
};

// a = act(sum + bias), 0 behind the last unit.
template <typename SHAPE>
__device__ __forceinline__ void activate(const Part<SHAPE>& part, int round, const float4* scratch) {
  using T = typename SHAPE::Element;
  using Activation = typename SHAPE::Activation;
  const float* const bias = part.bias();
  part.template for_items<false>(round, [&](Item<SHAPE>& item) {
    item.add_up(scratch, part.task.groups, part.task.parts);
    Kept<Activation, T> keep;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int unit = item.unit(j);
      const bool exists = part.exists(unit);
      const float with = bias[unit];
      float z[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        z[e] = item.v[j][e] + with;
        item.v[j][e] = exists ? Activation::apply(z[e]) : 0.0f;
      }
      keep.put(j, kKeepsInput<Activation> ? z : item.v[j]);
    }
    keep.store(part.kept(), (item.tile * Item<SHAPE>::kEights + item.eight) * 32 + item.lane);
    part.deliver(item);
  });
}

// dz = sum * slope. What a T cannot hold is reported where losses are scaled.
template <typename SHAPE>
__device__ __forceinline__ void slope(const Part<SHAPE>& part, int round, const float4* scratch,
                                      int* overflow) {
  using T = typename SHAPE::Element;
  using Activation = typename SHAPE::Activation;
  float poisoned = 0.0f;
  part.template for_items<false>(round, [&](Item<SHAPE>& item) {
    Kept<Activation, T> keep;
    keep.load(part.kept(), (item.tile * Item<SHAPE>::kEights + item.eight) * 32 + item.lane);
    item.add_up(scratch, part.task.groups, part.task.parts);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool exists = part.exists(item.unit(j));
      const float2 saved = keep.get(j);
      item.v[j][0] = exists ? Activation::backward(item.v[j][0], saved.x) : 0.0f;
      item.v[j][1] = exists ? Activation::backward(item.v[j][1], saved.y) : 0.0f;
      if constexpr (SHAPE::kScaled) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          poisoned += item.row(e) < part.here.present ? poison<T>(item.v[j][e]) : 0.0f;
        }
      }
    }
    part.deliver(item);
  });
  if constexpr (SHAPE::kScaled) report_overflow(overflow, poisoned);
}

// The loss of each element, and its gradient.
template <typename SHAPE, typename LOSS, typename TT>
__device__ __forceinline__ void compare(const Part<SHAPE>& part, int round, const float4* scratch,
                                        const TT* targets, int ld, float share, int* overflow,
                                        Tally& tally) {
  using T = typename SHAPE::Element;
  const Here<SHAPE>& here = part.here;
  const float* const bias = part.bias();
  const bool counts = part.sliced() || here.rank == 0;
  float poisoned = 0.0f;
  part.template for_items<false>(round, [&](Item<SHAPE>& item) {
    float t[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool exists = item.row(e) < here.present && part.exists(item.unit(j));
        t[j][e] = exists ? to_float(*at(targets, ld, here.first + item.row(e),
                                        part.first_unit() + item.unit(j)))
                         : 0.0f;
      }
    }
    item.add_up(scratch, part.task.groups, part.task.parts);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int unit = item.unit(j);
      const bool exists = part.exists(unit);
      const float with = bias[unit];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float z = item.v[j][e] + with;
        const bool counted = part.own(unit) && counts && item.row(e) < here.present;
        const float of_one = LOSS::loss(z, t[j][e]);
        tally.loss += counted ? of_one : 0.0f;
        tally.right += counted && LOSS::right(z, t[j][e]) ? 1 : 0;
        item.v[j][e] = exists ? LOSS::gradient(z, t[j][e]) * share : 0.0f;
        if constexpr (SHAPE::kScaled) {
          poisoned += part.own(unit) && item.row(e) < here.present ? poison<T>(item.v[j][e]) : 0.0f;
        }
      }
    }
    part.deliver(item);
  });
  if constexpr (SHAPE::kScaled) report_overflow(overflow, poisoned);
}

// Over the lanes of a row, which are STEP, 2 STEP, 4 STEP apart.
template <int STEP, typename V, typename F>
__device__ __forceinline__ V of_row(V value, F both) {
#pragma unroll
  for (int step = STEP; step < 8 * STEP; step *= 2) {
    value = both(value, __shfl_xor_sync(kFullWarp, value, step));
  }
  return value;
}

struct Greater {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Less {
  __device__ __forceinline__ int operator()(int a, int b) const { return min(a, b); }
};
struct Plus {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// The softmax of rows whose columns tiles share. Of each row a tile leaves its largest, the sum of powers
// and the first column of the largest, in `stats` [rows][tiles of all blocks], and the powers in
// `scratch`.
template <typename SHAPE>
__device__ __forceinline__ void softmax_of_tiles(const Part<SHAPE>& part, float4* scratch,
                                                 float4* stats, unsigned int barrier) {
  const Here<SHAPE>& here = part.here;
  const float* const bias = part.bias();
  const int groups = part.task.groups;
  const int of_row_ = groups * (part.sliced() ? SHAPE::kRanks : 1);
  // Tiles behind the slice report, too: that they have nothing.
  part.template for_items<true>(0, [&](Item<SHAPE>& item) {
    item.add_up(scratch, groups, part.task.parts);
    const int g = item.lane / 4;
    float most[2];
    float total[2];
    int first[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      most[e] = -infinity();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int unit = item.unit(j);
        item.v[j][e] = part.own(unit) ? item.v[j][e] + bias[unit] : -infinity();
        most[e] = fmaxf(most[e], item.v[j][e]);
      }
      most[e] = of_row<4>(most[e], Greater());
      const float base = most[e] == -infinity() ? 0.0f : most[e];
      total[e] = 0.0f;
      first[e] = 0x7fffffff;
#pragma unroll
      for (int j = 3; j >= 0; --j) {
        if (item.v[j][e] == most[e]) first[e] = part.first_unit() + item.unit(j);
        item.v[j][e] = exp_below_zero(item.v[j][e] - base);
        total[e] += item.v[j][e];
      }
      total[e] = of_row<4>(total[e], Plus());
      first[e] = of_row<4>(first[e], Less());
    }
    float4* const powers = item.place(scratch);
    powers[0] = make_float4(item.v[0][0], item.v[0][1], item.v[1][0], item.v[1][1]);
    powers[32] = make_float4(item.v[2][0], item.v[2][1], item.v[3][0], item.v[3][1]);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float4 found = make_float4(most[e], total[e], __int_as_float(first[e]), 0.0f);
      float4* const place =
          stats + item.row(e) * of_row_ + (part.sliced() ? here.rank * groups : 0) + item.tile;
      if (part.sliced()) {
        const unsigned int there = ptx::shared_address(place);
#pragma unroll
        for (int block = 0; block < SHAPE::kRanks; block += 8) {
          if (block + g == here.rank) {
            *place = found;
          } else if (block + g < SHAPE::kRanks) {
            ptx::send4(ptx::in_block(there, block + g), found, ptx::in_block(barrier, block + g));
          }
        }
      } else {
        if (g == 0) *place = found;
      }
    }
  });
}

// All of `stats` is there: of each row the largest, the inverse of the sum and the first column of the
// largest, by eight lanes.
template <typename SHAPE>
__device__ __forceinline__ void softmax_of_rows(float4* totals, const float4* stats, int tiles) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < 8 * SHAPE::kRows; i += 32 * SHAPE::kWarps) {
    const float4* const row = stats + i / 8 * tiles;
    float most = -infinity();
    for (int k = i % 8; k < tiles; k += 8) most = fmaxf(most, row[k].x);
    most = of_row<1>(most, Greater());
    float total = 0.0f;
    int first = 0x7fffffff;
    for (int k = i % 8; k < tiles; k += 8) {
      const float4 found = row[k];
      total += found.y * exp_below_zero(found.x - most);
      if (found.x == most) first = min(first, __float_as_int(found.z));
    }
    total = of_row<1>(total, Plus());
    first = of_row<1>(first, Less());
    // All probabilities are NaN where the total is: the first maximum is at 0.
    if (i % 8 == 0) {
      totals[i / 8] =
          make_float4(most, 1.0f / total, __int_as_float(total == total ? first : 0), 0.0f);
    }
  }
}

// The gradient, of the powers in `scratch`.
template <typename SHAPE>
__device__ __forceinline__ void softmax_gradient(const Part<SHAPE>& part, const float4* scratch,
                                                 const float4* stats, const float4* totals,
                                                 const int* labels, float share, int* overflow,
                                                 Tally& tally) {
  using T = typename SHAPE::Element;
  const Here<SHAPE>& here = part.here;
  const int groups = part.task.groups;
  const int of_row_ = groups * (part.sliced() ? SHAPE::kRanks : 1);
  const bool counts = part.sliced() || here.rank == 0;
  float poisoned = 0.0f;
  part.template for_items<false>(0, [&](Item<SHAPE>& item) {
    item.add_up(scratch, groups, 1);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = item.row(e);
      const bool present = counts && row < here.present;
      const int label = labels[row];
      const float4 all = totals[row];
      const float largest =
          stats[row * of_row_ + (part.sliced() ? here.rank * groups : 0) + item.tile].x;
      const float factor = exp_below_zero(largest - all.x) * all.y;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int unit = item.unit(j);
        const bool own = part.own(unit);
        const bool labelled = part.first_unit() + unit == label;
        const float probability = item.v[j][e] * factor;
        const float slope = cross_entropy_slope(probability, labelled, share);
        item.v[j][e] = own ? slope : 0.0f;
        if (own && labelled && present) {
          tally.loss += negative_log(probability);
          tally.right += __float_as_int(all.z) == label ? 1 : 0;
        }
        if constexpr (SHAPE::kScaled) {
          poisoned += own && row < here.present ? poison<T>(slope) : 0.0f;
        }
      }
      if (here.rank == 0 && item.tile == 0 && item.lane / 4 == 0 && present &&
          (label < 0 || label >= part.task.units)) {
        tally.loss += not_a_number();
      }
    }
    part.deliver(item);
  });
  if constexpr (SHAPE::kScaled) report_overflow(overflow, poisoned);
}

}  // namespace passes
