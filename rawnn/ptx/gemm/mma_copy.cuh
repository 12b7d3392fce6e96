// Tiles of a GEMM's operands in shared memory, and copies into them from matrices of any extent; shared
// by all main loops of gemm_kernels.cuh.
//
// An operand is contiguous along the inner dimension (nt's a and b, nn's a: "deep") or along its own
// extent (nn's b, tn's a and b: "wide"). A stage of the pipeline holds a part of the inner dimension: a
// number of bytes of each row of a deep operand, or a number of rows of a wide one. It is cut into
// panels whose rows have at most 128 bytes. Inside a panel the 16-byte chunks of a row are permuted by a
// key of the row, so that the rows a warp reads at once are in different banks.
#pragma once
#include "primitives/common.cuh"
#include "device/copies.cuh"
#include "device/shared.cuh"
#include "gemm/indexed_rows.cuh"
#include "primitives/types.cuh"

constexpr int kChunkBytes = 16;  // bytes of one copy

// A block's tile of the result: BM x BN, computed by WM x WN warps, times WK warps that share the inner
// dimension of each stage. STAGES tiles of the operands are in flight. CLUSTER blocks split the inner
// dimension and add up their partial sums. A stage has BYTES of the inner dimension. ALIGNED says that
// the rows of both operands begin at multiples of 16 bytes; otherwise they are copied element by
// element.
template <int BM, int BN, int WM, int WN, int WK, int STAGES, int CLUSTER, int BYTES, bool ALIGNED,
          bool EARLY = false>
struct Tile {
  static constexpr int kM = BM;
  static constexpr int kN = BN;
  static constexpr int kWarpsM = WM;
  static constexpr int kWarpsN = WN;
  static constexpr int kWarpsK = WK;
  static constexpr int kStages = STAGES;
  static constexpr int kCluster = CLUSTER;
  static constexpr int kBytes = BYTES;
  static constexpr bool kAligned = ALIGNED;
  static constexpr bool kEarly = EARLY;
  static constexpr int kThreads = 32 * WM * WN * WK;
};

// The layout of one operand's tile in shared memory: EXTENT is the tile's BM or BN, a stage has DEPTH
// elements of the inner dimension, and neighboring lanes read rows STRIDE apart at once from a deep
// tile.
template <typename T, int EXTENT, bool DEEP, int DEPTH, int STRIDE = 1>
struct Panel {
  using Element = T;
  static constexpr bool kDeep = DEEP;
  static constexpr int kDepth = DEPTH;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kWidth = (DEEP ? DEPTH : EXTENT) * kSize;  // bytes of a row of all panels
  static constexpr int kRowBytes = kWidth > 128 ? 128 : kWidth;
  static constexpr int kRows = DEEP ? EXTENT : DEPTH;
  static constexpr int kPanels = kWidth / kRowBytes;
  static constexpr int kChunks = kRowBytes / kChunkBytes;  // in a row of a panel
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;
  static_assert(kWidth % kRowBytes == 0 && kRowBytes % kChunkBytes == 0, "whole panels and chunks");

  // The permutation of a row's chunks. Wide rows of 4-byte elements are read 4 rows by 2 chunks at
  // once, wide rows of bytes at the rows 0, 1, 4, 5, 8, 9, ...; all others at 8 rows in sequence.
  static __device__ __forceinline__ int key(int row) {
    if constexpr (!DEEP && kSize == 4) {
      return ((row / (8 / kChunks)) << 1) & (kChunks - 1);
    } else if constexpr (!DEEP && kSize == 1) {
      return kChunks == 8 ? (row & 1) | ((row >> 1) & 6) : (row >> 2) & (kChunks - 1);
    } else {
      return (row / STRIDE / (8 / kChunks)) & (kChunks - 1);
    }
  }

  static constexpr int kKeyPeriod = !DEEP && kSize == 1 ? 16 : 8 * STRIDE;  // rows

  // Byte offset from the start of a panel.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ key(row)) * kChunkBytes);
  }
};

// Where tiles begin: a multiple of 1,024 bytes.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  return ptx::dynamic_shared<unsigned char, 1024>();
}

__device__ __forceinline__ void commit_copies() {
#if RAWNN_ARCH >= 800
  ptx::commit_copies();
#endif
}

// Waits until at most `PENDING` groups of this thread's copies are in flight.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
#if RAWNN_ARCH >= 800
  ptx::wait_for_copies<PENDING>();
#endif
}

// The bits of an element in the lowest bits of a word.
template <typename T>
__device__ __forceinline__ unsigned int element_bits(const T* pointer) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const unsigned int*>(pointer);
  } else if constexpr (sizeof(T) == 2) {
    return *reinterpret_cast<const unsigned short*>(pointer);
  } else {
    return *reinterpret_cast<const unsigned char*>(pointer);
  }
}

// Copies a chunk of which `count` elements exist, one element at a time, for rows that are not aligned.
template <typename T>
__device__ __forceinline__ void copy_elements(unsigned int to, const T* from, int count) {
  constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
  unsigned int word[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    word[w] = 0u;
#pragma unroll
    for (int i = 0; i < kInWord; ++i) {
      const int element = w * kInWord + i;
      if (element < count) word[w] |= element_bits(from + element) << (i * 32 / kInWord % 32);
    }
  }
  ptx::store_shared(to, word);
}

// Copies a chunk that is aligned to 16 bytes, asynchronously from sm_80 on.
__device__ __forceinline__ void copy_chunk(unsigned int to, const void* from) {
#if RAWNN_ARCH >= 800
  ptx::copy_async(to, from);
#else
  unsigned int words[4];
  load_words(words, from);
  ptx::store_shared(to, words);
#endif
}

// The same if only `count` elements exist: nothing else is read, and zeros fill the chunk.
template <typename T>
__device__ __forceinline__ void copy_part(unsigned int to, const T* from, int count) {
#if RAWNN_ARCH >= 800
  ptx::copy_async(to, from, count * static_cast<int>(sizeof(T)));
#else
  copy_elements(to, from, count);
#endif
}

// One thread's copies for all stages of an operand's tile. Beyond the end of the inner dimension the
// tile has zeros. Beyond the operand's own extent its values are undefined: those rows and columns of
// the result are never stored. If the matrix is ALIGNED, a chunk with at least one element can be read,
// because rows are padded to 16 bytes. SOURCE may be IndexedRows.
template <typename PANEL, int THREADS, bool ALIGNED, typename SOURCE = typename PANEL::Element>
struct Loader {
  using T = typename PANEL::Element;
  static constexpr int kPerChunk = kChunkBytes / PANEL::kSize;
  static constexpr int kAcross = PANEL::kChunks * PANEL::kPanels;
  static constexpr int kCopies = PANEL::kBytes / kChunkBytes;
  static constexpr int kRowStep = THREADS / kAcross;  // rows between a thread's copies
  static constexpr int kPasses = (kCopies + THREADS - 1) / THREADS;
  static_assert(THREADS % kAcross == 0, "a pass covers whole rows");
  // The rows of a wide operand vary from stage to stage: their indices are loaded some stages ahead.
  static constexpr bool kIndexedInner = Operand<SOURCE>::kIndexed && !PANEL::kDeep;
  static constexpr int kLead = kIndexedInner ? 2 : 1;

  const T* source[kPasses];  // of this thread's copies in the next stage
  long long advance;         // elements from stage to stage
  int row, chunk;            // in its panel, of its first copy
  int inner;                 // deep: elements of a stage ahead of its copies
  int exist;                 // not ALIGNED, wide: elements of its chunks that exist
  int rows;                  // not ALIGNED, deep: rows of the tile that exist
  int depth;                 // elements of the inner dimension left
  unsigned int to;           // bytes from the tile's start to its first copy
  // kIndexedInner: the matrix from its first column that is copied, with its pitch; the list from the next
  // stage on; and the rows of this thread's copies in the next stages.
  IndexedRows<T> inner_rows;
  int pitch;
  int index[kLead][kIndexedInner ? kPasses : 1];

  // `first` and `extent` are along the operand's own dimension, `begin` and `end` along the inner.
  __device__ __forceinline__ Loader(const SOURCE* matrix, int ld, int first, int extent, int begin,
                                    int end, int thread) {
    const int across = thread % kAcross;
    row = thread / kAcross;
    chunk = across % PANEL::kChunks;
    inner = PANEL::kDeep ? across * kPerChunk : 0;
    to = across / PANEL::kChunks * PANEL::kPanelBytes + PANEL::offset(row, chunk);
    depth = end - begin;
    rows = extent - first;
    if constexpr (PANEL::kDeep) {
      advance = PANEL::kDepth;
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int nth = min(first + row + pass * kRowStep, extent - 1);
        if constexpr (Operand<SOURCE>::kIndexed) {
          source[pass] =
              matrix->matrix + static_cast<long long>(matrix->list[nth]) * ld + begin + inner;
        } else {
          source[pass] = matrix + static_cast<long long>(nth) * ld + begin + inner;
        }
      }
    } else {
      exist = extent - first - across * kPerChunk;
      const int place = exist > 0 ? first + across * kPerChunk : 0;
      if constexpr (kIndexedInner) {
        inner_rows = {matrix->matrix + place, matrix->list + begin};
        pitch = ld;
#pragma unroll
        for (int ahead = 0; ahead < kLead; ++ahead) look_up(ahead);
      } else {
        advance = static_cast<long long>(ld) * PANEL::kDepth;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          source[pass] = matrix + static_cast<long long>(begin + row + pass * kRowStep) * ld + place;
        }
      }
    }
  }

  // Fills the tile at `tile` with the next stage, which has at least one element.
  __device__ __forceinline__ void load(unsigned int tile) {
    if constexpr (kIndexedInner) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        source[pass] = inner_rows.matrix + static_cast<long long>(index[0][pass]) * pitch;
      }
    }
    // Few copies are as fast with their number of elements as without.
    if (ALIGNED && kPasses > 2 && depth >= PANEL::kDepth) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        if (inside(pass)) copy_chunk(target(tile, pass), source[pass]);
      }
    } else {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        if (!inside(pass)) break;
        if constexpr (ALIGNED) {
          copy_part(target(tile, pass), source[pass], count(pass));
        } else {
          copy_elements(target(tile, pass), source[pass], count(pass));
        }
      }
    }
    if constexpr (kIndexedInner) {
#pragma unroll
      for (int ahead = 1; ahead < kLead; ++ahead) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) index[ahead - 1][pass] = index[ahead][pass];
      }
      inner_rows.list += PANEL::kDepth;
    } else {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) source[pass] += advance;
    }
    depth -= PANEL::kDepth;
    if constexpr (kIndexedInner) look_up(kLead - 1);
  }

 private:
  // Loads the rows of a stage behind the next; beyond the end of the list they are its last.
  __device__ __forceinline__ void look_up(int ahead) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int nth = row + pass * kRowStep + ahead * PANEL::kDepth;
      index[ahead][pass] = inner_rows.list[min(nth, depth - 1)];
    }
  }
  // Elements of a pass's chunk that exist, those beyond the operand's own extent counted as well
  // where they can be read.
  __device__ __forceinline__ int count(int pass) const {
    const int at = row + pass * kRowStep;
    if constexpr (PANEL::kDeep) {
      return ALIGNED || at < rows ? of_chunk(depth - inner) : 0;
    } else {
      return at >= depth ? 0 : ALIGNED ? kPerChunk : of_chunk(exist);
    }
  }
  static __device__ __forceinline__ int of_chunk(int left) {
    return left < 0 ? 0 : min(left, kPerChunk);
  }
  __device__ __forceinline__ bool inside(int pass) const {
    return kCopies % THREADS == 0 || row + pass * kRowStep < PANEL::kRows;
  }
  __device__ __forceinline__ unsigned int target(unsigned int tile, int pass) const {
    if constexpr (kRowStep % PANEL::kKeyPeriod == 0) {
      return tile + to + pass * kRowStep * PANEL::kRowBytes;
    } else {
      return tile + to - PANEL::offset(row, chunk) + PANEL::offset(row + pass * kRowStep, chunk);
    }
  }
};

// Requests an operand's first stages, `apart` bytes from each other, before pdl_wait.
template <int STAGES, typename LOADER>
__device__ __forceinline__ void load_ahead(LOADER& loader, unsigned int tile, int apart,
                                           int stages) {
#pragma unroll 1
  for (int stage = 0; stage < STAGES; ++stage) {
    if (stage < stages) loader.load(tile + stage * apart);
  }
}
