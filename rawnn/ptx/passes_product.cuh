// A product of a block's rows in passes.cuh: weights from memory into registers, values of shared memory.
//
//   FORWARD  sums[r, u] = sum over k of v[r, k] w[u, k]
//   else     sums[r, u] = sum over k of v[r, k] w[k, u]
//
// A tile is 32 units by all rows of the block, and one warp's: units are the rows of the tensor cores'
// result and the batch its columns, in eights. A chunk is 64 bytes along k. Of a chunk of a tile a lane
// loads four times 16 bytes, which are fragments as they are or, of 16-bit weights that are read along
// units, turned in eights (movmatrix). Both operands take k in one order of their own, in which 16 bytes
// are two steps' words, and the block j = 2 mt + h of eight rows of a fragment has the units of `unit_of`:
// so that a lane has whole pieces of 16 bytes of a row of results (`turned`). Loads of DEPTH chunks are
// under way, the first of them ahead of the wait for what is multiplied.
//
// Warps that have no tile of their own share k: PARTS of them a tile, GROUPS tiles at once, in ROUNDS.
#pragma once
#include "device/products.cuh"
#include "device/shared.cuh"
#include "mma_fragments.cuh"

namespace passes {

constexpr int kTile = 32;  // units

template <typename T>
constexpr int kPiece = 16 / static_cast<int>(sizeof(T));  // elements of 16 bytes
template <typename T>
constexpr int kChunk = 4 * kPiece<T>;

// The unit of a tile that is row g of the block of eight j.
template <typename T>
__device__ __forceinline__ int unit_of(int j, int g) {
  return sizeof(T) == 2 ? 8 * (g / 2) + 2 * j + g % 2 : 4 * g + j;
}

// Bytes from row to row of values of so many features: an odd number of chunks, so that eight lanes that
// load 16 bytes each of two rows meet all banks.
template <typename T>
__device__ constexpr int pitch_of(int features) {
  return 64 * (((features + kChunk<T> - 1) / kChunk<T>) | 1);
}

template <typename SHAPE, bool FORWARD, bool SLICED, int UNITS, int TERMS, int LD, int GROUPS, int PARTS,
          int ROUNDS, int DEPTH>
struct Product {
  using T = typename SHAPE::Element;
  using Sum = typename SHAPE::Sum;
  static constexpr int kTiles = SHAPE::kRows / 8;  // of eight rows of the batch
  static constexpr int kUnits = UNITS;
  static constexpr bool kSliced = SLICED;
  static constexpr int kGroups = GROUPS;
  static constexpr int kParts = PARTS;
  static constexpr int kRounds = ROUNDS;
  static constexpr int kOfTile = kTile / kPiece<T>;  // pieces
  // Of all units, so that they end with a chunk: whoever multiplies them finds zeros there.
  static constexpr int kPieces = (UNITS + kChunk<T> - 1) / kChunk<T> * 4;
  static constexpr int kChunks = (TERMS + kChunk<T> - 1) / kChunk<T>;
  static constexpr int kPitch = pitch_of<T>(TERMS);
  static constexpr int kItems =
      PARTS == 1 ? kTiles : (GROUPS * kTiles + SHAPE::kWarps - 1) / SHAPE::kWarps;
  static_assert(GROUPS * PARTS <= SHAPE::kWarps && kItems <= kTiles, "a warp has one task");

  int begin_piece, pieces;  // of this block
  int lane, g, t, warp;
  int tile, chunk, end;  // this warp's task in the round; chunks
  bool loads;            // whether any of what the lane would load is of this block's slice
  const T* w;
  int rows[4];  // forward: where the lane's units begin; else the column of its units, once
  unsigned int words[DEPTH][4][4];
  float sum[kTiles][2][4];

  __device__ __forceinline__ Product(const T* weights, int rank) : w(weights) {
    const int thread = static_cast<int>(threadIdx.x);
    lane = thread & 31;
    warp = thread / 32;
    g = lane / 4;
    t = lane % 4;
    begin_piece = SLICED ? rank * kPieces / SHAPE::kRanks : 0;
    pieces = (SLICED ? (rank + 1) * kPieces / SHAPE::kRanks : kPieces) - begin_piece;
  }

  __device__ __forceinline__ bool exists(int of_tile) const { return of_tile * kOfTile < pieces; }
  __device__ __forceinline__ int first_unit(int of_tile) const {
    return begin_piece * kPiece<T> + of_tile * kTile;
  }

  // Asks for the first chunks of a round.
  __device__ __forceinline__ void begin(int round) {
    const int group = warp / PARTS;
    const int part = warp % PARTS;
    tile = round * GROUPS + group;
    chunk = part * kChunks / PARTS;
    end = group < GROUPS && exists(tile) ? (part + 1) * kChunks / PARTS : chunk;
    const int first = first_unit(tile);
    const int piece = sizeof(T) == 4 ? g : FORWARD ? g / 2 : t;  // of the tile
    loads = tile * kOfTile + piece < pieces && first + piece * kPiece<T> < UNITS;
    if constexpr (FORWARD) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        rows[j] = min(first + unit_of<T>(j, g), UNITS - 1) * LD + kPiece<T> * t;
      }
    } else {
      rows[0] = min(first + kPiece<T> * (sizeof(T) == 2 ? t : g), LD - kPiece<T>);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      if (chunk + d < end) {
        load(words[d], chunk + d);
        if (!loads) {
#pragma unroll
          for (int i = 0; i < 16; ++i) words[d][i / 4][i % 4] = 0u;
        }
      }
    }
  }

  __device__ __forceinline__ void load(unsigned int (&to)[4][4], int of_chunk) const {
    if (!loads) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int term;
      const T* from;
      if constexpr (FORWARD) {
        term = of_chunk * kChunk<T> + kPiece<T> * t;
        from = w + rows[i] + of_chunk * kChunk<T>;
      } else {
        term = of_chunk * kChunk<T> + (sizeof(T) == 2 ? 8 * (g / 2) + 2 * i + g % 2 : 4 * t + i);
        from = w + term * LD + rows[0];
      }
      if (TERMS % kChunk<T> == 0 || term < TERMS) {
        load_words(to[i], from);
      } else {
        to[i][0] = to[i][1] = to[i][2] = to[i][3] = 0u;
      }
    }
  }

  // The fragments of the chunk's steps: of step s rows 16 mt and up.
  __device__ __forceinline__ void fragments(Factor<T, Sum> (&a)[2][2],
                                            const unsigned int (&from)[4][4], int of_chunk) const {
    unsigned int word[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        word[i][q] = from[i][q];
        if constexpr (!FORWARD && sizeof(T) == 2) word[i][q] = ptx::transpose_matrix(word[i][q]);
      }
    }
    if constexpr (FORWARD && TERMS % kPiece<T> != 0) {
      if (of_chunk == kChunks - 1) {  // padding may hold anything
        constexpr int each = 4 / static_cast<int>(sizeof(T));
        const int term = of_chunk * kChunk<T> + kPiece<T> * t;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            if (term + each * q >= TERMS) word[i][q] = 0u;
            if (each == 2 && term + 2 * q + 1 == TERMS) word[i][q] &= 0xffffu;
          }
        }
      }
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int mt = 0; mt < 2; ++mt) {
        unsigned int words_of[4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {  // of the step's terms
            words_of[2 * half + h] =
                FORWARD ? word[2 * mt + h][2 * s + half] : word[2 * s + half][2 * mt + h];
          }
        }
        a[s][mt].take(words_of);
      }
    }
  }

  static __device__ __forceinline__ void multiply(float (&to)[4], const Factor<T, Sum>& a,
                                                  const Factor<T, Sum>& b, int s) {
    if constexpr (kSame<Sum, tf32x3>) {  // as multiply_row of mma_fragments.cuh
      float part[4];
      ptx::multiply_from_zero(part, a.low, b.word[2 * s], b.word[2 * s + 1]);
      ptx::multiply<float>(part, a.word, b.low[2 * s], b.low[2 * s + 1]);
      ptx::multiply<float>(part, a.word, b.word[2 * s], b.word[2 * s + 1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] += part[i];
    } else {
      ptx::multiply<T>(to, a.word, b.word[2 * s], b.word[2 * s + 1]);
    }
  }

  __device__ __forceinline__ void use(const unsigned int (&from)[4][4], int of_chunk,
                                      unsigned int values) {
    Factor<T, Sum> a[2][2];
    fragments(a, from, of_chunk);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      unsigned int row[4];
      ptx::load_shared(row, values + n * 8 * kPitch + of_chunk * 64);
      Factor<T, Sum> b;
      b.take(row);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int mt = 0; mt < 2; ++mt) multiply(sum[n][mt], a[s][mt], b, s);
      }
    }
  }

  // `values`: the shared address of what is multiplied.
  __device__ __forceinline__ void run(unsigned int values) {
#pragma unroll
    for (int i = 0; i < kTiles * 8; ++i) sum[i / 8][i / 4 % 2][i % 4] = 0.0f;
    const unsigned int own = values + g * kPitch + 16 * t;
#pragma unroll 1
    for (; chunk < end; chunk += DEPTH) {
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        if (chunk + d < end) {
          use(words[d], chunk + d, own);
          if (chunk + d + DEPTH < end) load(words[d], chunk + d + DEPTH);
        }
      }
    }
  }

  // Sums of all parts: from here on a warp has kItems of a tile by eight rows. All threads call it.
  __device__ __forceinline__ void collect(float4* scratch, int round) {
    if constexpr (PARTS > 1) {
      const int group = warp / PARTS;
      if (group < GROUPS && exists(tile)) {
        float4* to = scratch + ((warp % PARTS * GROUPS + group) * kTiles * 2) * 32 + lane;
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) {
          const float(&of)[4] = sum[i / 2][i % 2];
          to[i * 32] = make_float4(of[0], of[1], of[2], of[3]);
        }
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!item_exists(i, round)) break;
#pragma unroll
        for (int mt = 0; mt < 2; ++mt) {
          const float4* from = scratch + ((warp + i * SHAPE::kWarps) * 2 + mt) * 32 + lane;
          float4 total = from[0];
#pragma unroll
          for (int part = 1; part < PARTS; ++part) {
            const float4 more = from[part * GROUPS * kTiles * 2 * 32];
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
          }
          sum[i][mt][0] = total.x, sum[i][mt][1] = total.y;
          sum[i][mt][2] = total.z, sum[i][mt][3] = total.w;
        }
      }
    }
  }

  // Of this warp's item i: its tile, and which eight rows of the batch. The same for all lanes.
  __device__ __forceinline__ int tile_of(int i, int round) const {
    return round * GROUPS + (PARTS == 1 ? warp : (warp + i * SHAPE::kWarps) / kTiles);
  }
  __device__ __forceinline__ int eight_of(int i) const {
    return PARTS == 1 ? i : (warp + i * SHAPE::kWarps) % kTiles;
  }
  __device__ __forceinline__ bool item_exists(int i, int round) const {
    const bool task = PARTS == 1 ? warp < GROUPS : warp + i * SHAPE::kWarps < GROUPS * kTiles;
    return task && exists(tile_of(i, round));
  }
  // Calls body(i) for the items that exist, all of a tile's in a row.
  template <typename BODY>
  __device__ __forceinline__ void for_items(int round, BODY body) const {
    if constexpr (PARTS == 1) {
      if (item_exists(0, round)) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) body(i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (item_exists(i, round)) body(i);
      }
    }
  }
  // Its number for the block j of eight units and the row 2t + e of the eight.
  __device__ __forceinline__ float& number(int i, int j, int e) {
    return sum[i][j / 2][j % 2 * 2 + e];
  }
};

}  // namespace passes
