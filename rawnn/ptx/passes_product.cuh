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
// so that a lane has whole pieces of 16 bytes of a row of results (passes_finish.cuh). Loads of
// kAhead chunks are under way, the first of them ahead of the wait for what is multiplied.
//
// Warps that have no tile of their own share k: `parts` of them a tile, `groups` tiles at once, in
// `rounds`. All layers go through the same code, of which a launch has less to fetch than of code of its
// own for each layer. Whether that is faster has not been timed.
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
template <typename T>
constexpr int kOfTile = kTile / kPiece<T>;  // pieces

// The unit of a tile that is row g of the block of eight j.
template <typename T>
__device__ __forceinline__ int unit_of(int j, int g) {
  return sizeof(T) == 2 ? 8 * (g / 2) + 2 * j + g % 2 : 4 * g + j;
}

// A product, as the kernel's table has it. Places are bytes of the block's shared memory.
template <typename T>
struct Task {
  const T* weights;
  T* memory;       // what becomes of the sums, [batch, units]
  int ldw, ld;     // of both
  int units, terms;
  int pieces;      // of all units, up to the end of a chunk: whoever multiplies them finds zeros there
  int sliced;      // whether blocks have a slice of the units each, or all have all
  int from, to;    // places of the values that are multiplied, and of what becomes of them
  int pitch_from, pitch_to;  // bytes from row to row
  int groups, parts, inverse, rounds;  // 256 / parts, rounded up
  int chunks, each;  // of a part
  int bias, kept;    // places
};

template <typename SHAPE>
struct Product {
  using T = typename SHAPE::Element;
  using Sum = typename SHAPE::Sum;
  static constexpr int kEights = SHAPE::kRows / 8;  // of rows of the batch
  static constexpr int kAhead = SHAPE::kAhead;

  int lane, g, t, warp;
  int begin_piece, pieces;  // of this block
  int tile, part, chunk, end;  // this warp's task in the round; chunks
  bool loads;  // whether any of what the lane would load is of this block's slice
  const T* w;
  int ldw, terms, chunks;
  int rows[4];  // forward: where the lane's units begin; else the column of its units, once
  unsigned int words[kAhead][4][4];
  float sum[kEights][2][4];

  __device__ __forceinline__ Product() {
    const int thread = static_cast<int>(threadIdx.x);
    lane = thread & 31;
    warp = thread / 32;
    g = lane / 4;
    t = lane % 4;
  }

  __device__ __forceinline__ int first_unit(int of_tile) const {
    return begin_piece * kPiece<T> + of_tile * kTile;
  }

  // Asks for the first chunks of a round.
  template <bool FORWARD>
  __device__ __forceinline__ void begin(const Task<T>& task, int rank, int round) {
    begin_piece = task.sliced != 0 ? rank * task.pieces / SHAPE::kRanks : 0;
    pieces = (task.sliced != 0 ? (rank + 1) * task.pieces / SHAPE::kRanks : task.pieces) - begin_piece;
    w = task.weights;
    ldw = task.ldw;
    terms = task.terms;
    chunks = task.chunks;
    const int group = warp * task.inverse >> 8;
    part = warp - group * task.parts;
    tile = round * task.groups + group;
    chunk = part * task.each;
    end = group < task.groups && tile * kOfTile<T> < pieces ? min(chunk + task.each, chunks) : chunk;
    const int first = first_unit(tile);
    const int piece = sizeof(T) == 4 ? g : FORWARD ? g / 2 : t;  // of the tile
    loads = tile * kOfTile<T> + piece < pieces && first + piece * kPiece<T> < task.units;
    if constexpr (FORWARD) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        rows[j] = min(first + unit_of<T>(j, g), task.units - 1) * ldw + kPiece<T> * t;
      }
    } else {
      rows[0] = first + piece * kPiece<T>;
    }
#pragma unroll
    for (int d = 0; d < kAhead; ++d) {
#pragma unroll
      for (int i = 0; i < 16; ++i) words[d][i / 4][i % 4] = 0u;
      if (chunk + d < end) load<FORWARD>(words[d], chunk + d);
    }
  }

  template <bool FORWARD>
  __device__ __forceinline__ void load(unsigned int (&to)[4][4], int of_chunk) const {
    if (!loads) return;
    if (of_chunk < chunks - 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) load_words(to[i], w + place<FORWARD>(of_chunk, i));
    } else {  // terms may end within it
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (term<FORWARD>(of_chunk, i) < terms) {
          load_words(to[i], w + place<FORWARD>(of_chunk, i));
        } else {
          to[i][0] = to[i][1] = to[i][2] = to[i][3] = 0u;
        }
      }
    }
  }
  // The first of the terms of the lane's i-th 16 bytes.
  template <bool FORWARD>
  __device__ __forceinline__ int term(int of_chunk, int i) const {
    return of_chunk * kChunk<T> +
           (FORWARD ? kPiece<T> * t : sizeof(T) == 2 ? 8 * (g / 2) + 2 * i + g % 2 : 4 * t + i);
  }
  template <bool FORWARD>
  __device__ __forceinline__ int place(int of_chunk, int i) const {
    return FORWARD ? rows[i] + of_chunk * kChunk<T> : term<FORWARD>(of_chunk, i) * ldw + rows[0];
  }

  // The fragments of the chunk's steps: of step s rows 16 mt and up.
  template <bool FORWARD>
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
    if constexpr (FORWARD) {
      if (of_chunk == chunks - 1) {  // padding may hold anything
        constexpr int each = 4 / static_cast<int>(sizeof(T));
        const int left = terms - of_chunk * kChunk<T> - kPiece<T> * t;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const unsigned int kept = each * q >= left                       ? 0u
                                    : each == 2 && 2 * q + 1 == left ? 0xffffu
                                                                     : 0xffffffffu;
#pragma unroll
          for (int i = 0; i < 4; ++i) word[i][q] &= kept;
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
      float fresh[4];
      ptx::multiply_from_zero(fresh, a.low, b.word[2 * s], b.word[2 * s + 1]);
      ptx::multiply<float>(fresh, a.word, b.low[2 * s], b.low[2 * s + 1]);
      ptx::multiply<float>(fresh, a.word, b.word[2 * s], b.word[2 * s + 1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] += fresh[i];
    } else {
      ptx::multiply<T>(to, a.word, b.word[2 * s], b.word[2 * s + 1]);
    }
  }

  template <bool FORWARD>
  __device__ __forceinline__ void use(const unsigned int (&from)[4][4], int of_chunk,
                                      unsigned int values, int eight_rows) {
    Factor<T, Sum> a[2][2];
    fragments<FORWARD>(a, from, of_chunk);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      unsigned int row[4];
      ptx::load_shared(row, values + n * eight_rows + of_chunk * 64);
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
  template <bool FORWARD>
  __device__ __forceinline__ void run(unsigned int values, int pitch) {
#pragma unroll
    for (int i = 0; i < kEights * 8; ++i) sum[i / 8][i / 4 % 2][i % 4] = 0.0f;
    const unsigned int own = values + g * pitch + 16 * t;
#pragma unroll 1
    for (; chunk < end; chunk += kAhead) {
#pragma unroll
      for (int d = 0; d < kAhead; ++d) {
        if (chunk + d < end) {
          use<FORWARD>(words[d], chunk + d, own, 8 * pitch);
          if (chunk + d + kAhead < end) load<FORWARD>(words[d], chunk + d + kAhead);
        }
      }
    }
  }

  // Leaves the sums, in the order of lanes, where `add_up` finds them behind a barrier of the block.
  __device__ __forceinline__ void leave(float4* scratch, const Task<T>& task) const {
    const int group = warp * task.inverse >> 8;
    if (group >= task.groups) return;
    float4* to = scratch + (part * task.groups + group) * (kEights * 64) + lane;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const float(&of)[4] = sum[i / 2][i % 2];
      to[i * 32] = make_float4(of[0], of[1], of[2], of[3]);
    }
  }
};

// An item: a tile by eight rows, of which a lane has numbers [j][e]: of the block j of eight units, and of
// row 2t + e.
template <typename SHAPE>
struct Item {
  using T = typename SHAPE::Element;
  static constexpr int kEights = SHAPE::kRows / 8;
  int number, tile, eight, lane;
  float v[4][2];

  __device__ __forceinline__ int unit(int j) const {  // of the slice
    return tile * kTile + unit_of<T>(j, lane / 4);
  }
  __device__ __forceinline__ int row(int e) const { return 8 * eight + 2 * (lane % 4) + e; }
  __device__ __forceinline__ float4* place(float4* scratch) const {
    return scratch + number * 64 + lane;
  }
  // The sums of all parts.
  __device__ __forceinline__ void add_up(const float4* scratch, int groups, int parts) {
#pragma unroll
    for (int mt = 0; mt < 2; ++mt) {
      const float4* from = scratch + number * 64 + mt * 32 + lane;
      float4 total = *from;
#pragma unroll 4
      for (int part = 1; part < parts; ++part) {
        from += groups * (kEights * 64);
        const float4 more = *from;
        total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
      }
      v[2 * mt][0] = total.x, v[2 * mt][1] = total.y;
      v[2 * mt + 1][0] = total.z, v[2 * mt + 1][1] = total.w;
    }
  }
};

}  // namespace passes
