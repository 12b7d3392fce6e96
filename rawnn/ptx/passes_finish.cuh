// What becomes of a product's sums in passes.cuh: values of the next layer, gradients, and the loss.
//
// A lane has of an item (passes_product.cuh) numbers of rows 2t and 2t + 1 at one unit of each of four blocks
// j; packed and turned they are a piece of 16 bytes of a row, which goes to where the next product finds
// it, in this block or in all of the cluster, and to memory. What a slope is taken at stays with the
// block, in the order of lanes, as the product of the gradient has it in the same lanes.
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
  int rank;
  int first;    // row of the batch
  int present;  // rows
  unsigned int apart[SHAPE::kRanks];

  __device__ __forceinline__ Here(unsigned int at, int number, int rows) {
    rank = SHAPE::kRanks == 1 ? 0 : number % SHAPE::kRanks;
    first = number / SHAPE::kRanks * SHAPE::kRows;
    present = min(SHAPE::kRows, rows - first);
#pragma unroll
    for (int i = 1; i < SHAPE::kRanks; ++i) {
      apart[i] = ptx::in_block(at, (rank + i) % SHAPE::kRanks) - at;
    }
  }
};

// Where results go: `values` are the next product's, at a shared address, with so many bytes from row to
// row; 0 where none reads them. What is sent counts at `barrier`.
template <typename T>
struct Results {
  T* memory;
  int ld;
  unsigned int values;
  unsigned int barrier;
};

// 16 bytes to the same place of all other blocks of the cluster.
template <typename SHAPE>
__device__ __forceinline__ void send_to_others(const Here<SHAPE>& here, unsigned int to, float4 value,
                                               unsigned int barrier) {
#pragma unroll
  for (int i = 1; i < SHAPE::kRanks; ++i) {
    ptx::send4(to + here.apart[i], value, barrier + here.apart[i]);
  }
}

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

template <typename SHAPE, typename P, typename T>
__device__ __forceinline__ void deliver_piece(const P& p, const Here<SHAPE>& here, const Results<T>& to,
                                              int piece, int row, bool mine,
                                              const unsigned int (&words)[4]) {
  if (piece >= p.pieces) return;
  const int of_all = p.begin_piece + piece;
  if (to.values != 0u) {
    const unsigned int place = to.values + row * pitch_of<T>(P::kUnits) + of_all * 16;
    ptx::store_shared(place, words);
    if constexpr (SHAPE::kRanks > 1 && P::kSliced) {
      send_to_others(here, place,
                     make_float4(__uint_as_float(words[0]), __uint_as_float(words[1]),
                                 __uint_as_float(words[2]), __uint_as_float(words[3])),
                     to.barrier);
    }
  }
  if (mine && row < here.present && of_all * kPiece<T> < P::kUnits) {
    store_words(to.memory + static_cast<long long>(here.first + row) * to.ld + of_all * kPiece<T>,
                words);
  }
}

// An item's numbers, made v[j][e] by the caller.
template <typename SHAPE, typename P, typename T>
__device__ __forceinline__ void deliver(const P& p, const Here<SHAPE>& here, const Results<T>& to, int i,
                                        int round, const float (&v)[4][2]) {
  const int tile = p.tile_of(i, round);
  const int eight = p.eight_of(i);
  // Of what all blocks have each stores a part.
  const bool mine = P::kSliced || SHAPE::kRanks == 1 || eight % SHAPE::kRanks == here.rank;
  unsigned int words[4];
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = ptx::transpose_matrix(pack_pair<T>(v[j][0], v[j][1]));
    deliver_piece<SHAPE>(p, here, to, tile * P::kOfTile + p.t, 8 * eight + p.g, mine, words);
  } else {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = __float_as_uint(v[j][e]);
      deliver_piece<SHAPE>(p, here, to, tile * P::kOfTile + p.g, 8 * eight + 2 * p.t + e,
                                  mine, words);
    }
  }
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

// a = act(sum + bias), 0 behind the last unit. `bias` are those of the block's slice.
template <typename SHAPE, typename ACTIVATION, typename P, typename T>
__device__ __forceinline__ void activate(P& p, int round, const Here<SHAPE>& here, const float* bias,
                                         unsigned char* kept, const Results<T>& to) {
  p.for_items(round, [&](int i) {
    const int tile = p.tile_of(i, round);
    float v[4][2];
    Kept<ACTIVATION, T> keep;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int unit = tile * kTile + unit_of<T>(j, p.g);
      const bool exists = p.first_unit(0) + unit < P::kUnits;
      float z[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        z[e] = p.number(i, j, e) + (exists ? bias[unit] : 0.0f);
        v[j][e] = exists ? ACTIVATION::apply(z[e]) : 0.0f;
      }
      keep.put(j, kKeepsInput<ACTIVATION> ? z : v[j]);
    }
    keep.store(kept, (tile * P::kTiles + p.eight_of(i)) * 32 + p.lane);
    deliver<SHAPE>(p, here, to, i, round, v);
  });
}

// dz = sum * slope. What a T cannot hold is reported where losses are scaled.
template <typename SHAPE, typename ACTIVATION, typename P, typename T>
__device__ __forceinline__ void slope(P& p, int round, const Here<SHAPE>& here, const unsigned char* kept,
                                      int* overflow, const Results<T>& to) {
  float poisoned = 0.0f;
  p.for_items(round, [&](int i) {
    const int tile = p.tile_of(i, round);
    const int eight = p.eight_of(i);
    Kept<ACTIVATION, T> keep;
    keep.load(kept, (tile * P::kTiles + eight) * 32 + p.lane);
    float v[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool exists = p.first_unit(tile) + unit_of<T>(j, p.g) < P::kUnits;
      const float2 saved = keep.get(j);
      v[j][0] = exists ? ACTIVATION::backward(p.number(i, j, 0), saved.x) : 0.0f;
      v[j][1] = exists ? ACTIVATION::backward(p.number(i, j, 1), saved.y) : 0.0f;
      if constexpr (SHAPE::kScaled) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          poisoned += 8 * eight + 2 * p.t + e < here.present ? poison<T>(v[j][e]) : 0.0f;
        }
      }
    }
    deliver<SHAPE>(p, here, to, i, round, v);
  });
  if constexpr (SHAPE::kScaled) report_overflow(overflow, poisoned);
}

// The loss of each element, and its gradient.
template <typename SHAPE, typename LOSS, typename P, typename T, typename TT>
__device__ __forceinline__ void compare(P& p, int round, const Here<SHAPE>& here, const float* bias,
                                        const TT* targets, int ld, float share, int* overflow,
                                        Tally& tally, const Results<T>& to) {
  float t[P::kItems][4][2];
#pragma unroll
  for (int i = 0; i < P::kItems; ++i) {
    const int first = p.first_unit(p.tile_of(i, round));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int unit = first + unit_of<T>(j, p.g);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * p.eight_of(i) + 2 * p.t + e;
        const bool exists = p.item_exists(i, round) && row < here.present && unit < P::kUnits;
        t[i][j][e] = exists ? to_float(*at(targets, ld, here.first + row, unit)) : 0.0f;
      }
    }
  }
  const bool counts = P::kSliced || here.rank == 0;
  float poisoned = 0.0f;
  p.for_items(round, [&](int i) {
    const int tile = p.tile_of(i, round);
    float v[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int unit = tile * kTile + unit_of<T>(j, p.g);
      const bool exists = p.first_unit(0) + unit < P::kUnits;
      // Of a tile's pieces behind the slice another block takes the loss.
      const bool own = unit < p.pieces * kPiece<T>;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * p.eight_of(i) + 2 * p.t + e;
        const float z = p.number(i, j, e) + (exists ? bias[unit] : 0.0f);
        const bool here_too = exists && own && counts && row < here.present;
        const float of_one = LOSS::loss(z, t[i][j][e]);
        tally.loss += here_too ? of_one : 0.0f;
        tally.right += here_too && LOSS::right(z, t[i][j][e]) ? 1 : 0;
        v[j][e] = exists ? LOSS::gradient(z, t[i][j][e]) * share : 0.0f;
        if constexpr (SHAPE::kScaled) {
          poisoned += exists && own && row < here.present ? poison<T>(v[j][e]) : 0.0f;
        }
      }
    }
    deliver<SHAPE>(p, here, to, i, round, v);
  });
  if constexpr (SHAPE::kScaled) report_overflow(overflow, poisoned);
}

// The softmax of rows whose columns tiles share: of each row a tile leaves its largest, the sum of powers
// and the first column of the largest, in `stats` [rows][tiles of all blocks]; all blocks make the
// same of them, in `totals` [rows].
template <typename SHAPE, typename P>
struct Softmax {
  using T = typename P::T;
  static constexpr int kShares = P::kSliced ? SHAPE::kRanks : 1;
  static constexpr int kStats = kShares * P::kGroups;  // a row's
  static_assert(P::kRounds == 1, "all of a row at once");

  float largest[P::kItems][2];

  __device__ __forceinline__ void begin(P& p, const Here<SHAPE>& here, const float* bias,
                                        float4* stats, unsigned int barrier) {
#pragma unroll
    for (int i = 0; i < P::kItems; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int tile = p.tile_of(i, 0);
        float most = -infinity();
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int unit = tile * kTile + unit_of<T>(j, p.g);
          float& value = p.number(i, j, e);
          value = reports(p, i) && own(p, unit) ? value + bias[unit] : -infinity();
          most = fmaxf(most, value);
        }
        largest[i][e] = of_units(most, [](float a, float b) { return fmaxf(a, b); });
      }
    }
    float totals[P::kItems][2];
    int firsts[P::kItems][2];
#pragma unroll
    for (int i = 0; i < P::kItems; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float most = largest[i][e];
        const float base = most == -infinity() ? 0.0f : most;
        float total = 0.0f;
        int first = 0x7fffffff;
#pragma unroll
        for (int j = 3; j >= 0; --j) {
          float& value = p.number(i, j, e);
          if (value == most) first = p.first_unit(p.tile_of(i, 0)) + unit_of<T>(j, p.g);
          value = exp_below_zero(value - base);
          total += value;
        }
        totals[i][e] = of_units(total, [](float a, float b) { return a + b; });
        firsts[i][e] = of_units(first, [](int a, int b) { return min(a, b); });
      }
    }
#pragma unroll
    for (int i = 0; i < P::kItems; ++i) {
      if (!reports(p, i)) break;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * p.eight_of(i) + 2 * p.t + e;
        const float4 found =
            make_float4(largest[i][e], totals[i][e], __int_as_float(firsts[i][e]), 0.0f);
        float4* const place =
            stats + row * kStats + (P::kSliced ? here.rank : 0) * P::kGroups + p.tile_of(i, 0);
        if constexpr (kShares > 1) {
          const unsigned int there = ptx::shared_address(place);
#pragma unroll
          for (int block = 0; block < SHAPE::kRanks; block += 8) {
            if (block + p.g == here.rank) {
              *place = found;
            } else if (block + p.g < SHAPE::kRanks) {
              ptx::send4(ptx::in_block(there, block + p.g), found,
                         ptx::in_block(barrier, block + p.g));
            }
          }
        } else {
          if (p.g == 0) *place = found;
        }
      }
    }
  }

  // All of `stats` is there. Eight lanes a row; of its total the inverse.
  static __device__ __forceinline__ void add_up(float4* totals, const float4* stats) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < 8 * SHAPE::kRows; i += 32 * SHAPE::kWarps) {
      const float4* const of_row = stats + i / 8 * kStats;
      const int lane = i % 8;
      float most = -infinity();
#pragma unroll
      for (int k = lane; k < kStats; k += 8) most = fmaxf(most, of_row[k].x);
      most = of_row_lanes(most, [](float a, float b) { return fmaxf(a, b); });
      float total = 0.0f;
      int first = 0x7fffffff;
#pragma unroll
      for (int k = lane; k < kStats; k += 8) {
        const float4 found = of_row[k];
        total += found.y * exp_below_zero(found.x - most);
        if (found.x == most) first = min(first, __float_as_int(found.z));
      }
      total = of_row_lanes(total, [](float a, float b) { return a + b; });
      first = of_row_lanes(first, [](int a, int b) { return min(a, b); });
      // All probabilities are NaN where the total is: the first maximum is at 0.
      if (lane == 0) {
        totals[i / 8] = make_float4(most, 1.0f / total,
                                    __int_as_float(total == total ? first : 0), 0.0f);
      }
    }
  }

  __device__ __forceinline__ void finish(P& p, const Here<SHAPE>& here, const int* labels,
                                         const float4* totals, float share, int* overflow,
                                         Tally& tally, const Results<T>& to) {
    const bool counts = P::kSliced || here.rank == 0;
    float poisoned = 0.0f;
    p.for_items(0, [&](int i) {
      const int tile = p.tile_of(i, 0);
      float v[4][2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * p.eight_of(i) + 2 * p.t + e;
        const bool present = counts && row < here.present;
        const int label = labels[row];
        const float4 of_row = totals[row];
        const float factor = exp_below_zero(largest[i][e] - of_row.x) * of_row.y;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int unit = tile * kTile + unit_of<T>(j, p.g);
          const bool exists = own(p, unit);
          const bool labelled = p.first_unit(0) + unit == label;
          const float probability = p.number(i, j, e) * factor;
          const float slope = cross_entropy_slope(probability, labelled, share);
          v[j][e] = exists ? slope : 0.0f;
          if (exists && labelled && present) {
            tally.loss += negative_log(probability);
            tally.right += __float_as_int(of_row.z) == label ? 1 : 0;
          }
          if constexpr (SHAPE::kScaled) {
            poisoned += exists && row < here.present ? poison<T>(slope) : 0.0f;
          }
        }
        if (here.rank == 0 && tile == 0 && p.g == 0 && present &&
            (label < 0 || label >= P::kUnits)) {
          tally.loss += not_a_number();
        }
      }
      deliver<SHAPE>(p, here, to, i, 0, v);
    });
    if constexpr (SHAPE::kScaled) report_overflow(overflow, poisoned);
  }

 private:
  // Tiles behind the slice report, too: that they have nothing.
  static __device__ __forceinline__ bool reports(const P& p, int i) {
    return P::kParts == 1 ? p.warp < P::kGroups
                          : p.warp + i * SHAPE::kWarps < P::kGroups * P::kTiles;
  }
  static __device__ __forceinline__ bool own(const P& p, int unit) {
    return p.first_unit(0) + unit < P::kUnits && unit < p.pieces * kPiece<T>;
  }
  // Over the lanes that have units of the same rows.
  template <typename V, typename F>
  static __device__ __forceinline__ V of_units(V value, F both) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      value = both(value, __shfl_xor_sync(kFullWarp, value, step));
    }
    return value;
  }
  template <typename V, typename F>
  static __device__ __forceinline__ V of_row_lanes(V value, F both) {
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
      value = both(value, __shfl_xor_sync(kFullWarp, value, step));
    }
    return value;
  }
};

}  // namespace passes
