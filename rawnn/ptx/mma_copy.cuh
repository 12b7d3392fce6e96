// Tiles of the operands of a product in shared memory, and copies into them from matrices of any
// extent: shared by mma.cu, wgmma.cu and tiled.cu.
//
// An operand is contiguous along the inner dimension (nt's a and b, nn's a: "deep") or along its own
// extent (nn's b, tn's a and b: "wide"). A stage of the pipeline holds 128 bytes of the inner
// dimension of it: 128 bytes a row of a deep operand, 128 / sizeof(T) rows of a wide one, cut into
// panels of at most 128 bytes. Inside a panel the 16-byte chunks of a row are permuted by a key of the
// row, so that the rows a warp reads at once lie in different banks.
#pragma once
#include "common.cuh"
#include "types.cuh"

constexpr int kStageBytes = 128;  // of the inner dimension
constexpr int kChunkBytes = 16;   // of one copy

// A block's tile of the result: BM x BN, computed by WM x WN warps side by side and WK that share
// the inner dimension of each stage; STAGES tiles of the operands in flight; CLUSTER blocks that cut
// the inner dimension among them and add up their parts.
template <int BM, int BN, int WM, int WN, int WK, int STAGES, int CLUSTER>
struct Tile {
  static constexpr int kM = BM;
  static constexpr int kN = BN;
  static constexpr int kWarpsM = WM;
  static constexpr int kWarpsN = WN;
  static constexpr int kWarpsK = WK;
  static constexpr int kStages = STAGES;
  static constexpr int kCluster = CLUSTER;
  static constexpr int kThreads = 32 * WM * WN * WK;
};

// Where the elements of one operand's tile lie in shared memory: EXTENT is the tile's BM or BN, DEPTH
// elements of the inner dimension are a stage, and STRIDE rows lie between those that neighbouring
// lanes read at once from a deep tile.
template <typename T, int EXTENT, bool DEEP,
          int DEPTH = kStageBytes / static_cast<int>(sizeof(T)), int STRIDE = 1>
struct Panel {
  using Element = T;
  static constexpr bool kDeep = DEEP;
  static constexpr int kDepth = DEPTH;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kWidth = (DEEP ? DEPTH : EXTENT) * kSize;  // bytes of a row of all panels
  static constexpr int kRowBytes = kWidth > 128 ? 128 : kWidth;
  static constexpr int kRows = DEEP ? EXTENT : DEPTH;
  static constexpr int kPanels = kWidth / kRowBytes;
  static constexpr int kChunks = kRowBytes / kChunkBytes;  // a row of a panel
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;
  static_assert(kWidth % kRowBytes == 0 && kRowBytes % kChunkBytes == 0, "whole panels and chunks");
  static_assert(!DEEP || kPanels == 1, "a deep tile is one panel");

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

  // Bytes from the start of a panel.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ key(row)) * kChunkBytes);
  }
};

// Dynamic shared memory, and addresses in it. On the host (tests) blocks run one at a time.
#if RAWNN_ARCH
extern __shared__ __align__(1024) unsigned char dynamic_shared[];

__device__ __forceinline__ unsigned int shared_address(const void* pointer) {
  return static_cast<unsigned int>(__cvta_generic_to_shared(pointer));
}
#else
alignas(1024) static unsigned char dynamic_shared[96 * 1024];

__device__ __forceinline__ unsigned int shared_address(const void* pointer) {
  return static_cast<unsigned int>(static_cast<const unsigned char*>(pointer) - dynamic_shared);
}
#endif

__device__ __forceinline__ void store_chunk(unsigned int to, const unsigned int (&words)[4]) {
#if RAWNN_ARCH
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
#else
  store_words(dynamic_shared + to, words);
#endif
}

__device__ __forceinline__ void commit_copies() {
#if RAWNN_ARCH >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `PENDING` groups of this thread's copies are under way.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
#if RAWNN_ARCH >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
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

// A chunk of which `count` elements exist, one element at a time: for rows that are not aligned.
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
  store_chunk(to, word);
}

// Copies the first `count` elements of a chunk, aligned to 16 bytes, and fills it up with zeros;
// nothing else is read. In the background from sm_80 on.
template <typename T>
__device__ __forceinline__ void copy_chunk(unsigned int to, const T* from, int count) {
#if RAWNN_ARCH >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(count * static_cast<int>(sizeof(T)))
               : "memory");
#else
  if (count == kChunkBytes / static_cast<int>(sizeof(T))) {
    unsigned int words[4];
    load_words(words, from);
    store_chunk(to, words);
  } else {
    copy_elements(to, from, count);
  }
#endif
}

// One thread's part in filling stage after stage of an operand's tile.
template <typename PANEL, int THREADS>
struct Loader {
  using T = typename PANEL::Element;
  static constexpr int kPerChunk = kChunkBytes / static_cast<int>(sizeof(T));
  static constexpr int kAcross = PANEL::kChunks * PANEL::kPanels;
  static constexpr int kCopies = PANEL::kBytes / kChunkBytes;
  static constexpr int kRowStep = THREADS / kAcross;  // rows between a thread's copies
  static constexpr int kPasses = (kCopies + THREADS - 1) / THREADS;
  static_assert(THREADS % kAcross == 0, "a pass covers whole rows");

  const T* source;    // of this thread's first copy of the next stage
  long long stride;   // elements between its copies
  long long advance;  // elements from stage to stage
  int row;            // in the tile, of its first copy
  int limit;          // deep: rows that exist; wide: elements of its chunk that exist
  int depth;          // elements of the inner dimension left, seen from this thread's first copy
  unsigned int to;    // bytes from the tile's start to its panel
  int chunk;
  bool vector;

  // `first` and `extent` are along the operand's own dimension, `begin` and `end` along the inner.
  __device__ __forceinline__ Loader(const T* matrix, int ld, int first, int extent, int begin,
                                    int end, int thread) {
    const int across = thread % kAcross;
    row = thread / kAcross;
    vector = aligned(matrix, ld, kChunkBytes);
    if constexpr (PANEL::kDeep) {
      chunk = across;
      to = 0;
      limit = extent - first;
      depth = end - begin - across * kPerChunk;
      source = matrix + static_cast<long long>(first + row) * ld + begin + across * kPerChunk;
      advance = PANEL::kDepth;
    } else {
      chunk = across % PANEL::kChunks;
      to = across / PANEL::kChunks * PANEL::kPanelBytes;
      limit = extent - first - across * kPerChunk;
      depth = end - begin;
      source = matrix + static_cast<long long>(begin + row) * ld + first + across * kPerChunk;
      advance = static_cast<long long>(ld) * PANEL::kDepth;
    }
    stride = static_cast<long long>(ld) * kRowStep;
  }

  // Fills the tile at `tile` with the next stage; past the end, with zeros.
  __device__ __forceinline__ void load(unsigned int tile, const T* matrix) {
    if (vector) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int exist = count(pass);
        const T* from = exist > 0 ? source + pass * stride : matrix;
        if (inside(pass)) copy_chunk(target(tile, pass), from, exist);
      }
    } else {
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        if (inside(pass)) copy_elements(target(tile, pass), source + pass * stride, count(pass));
      }
    }
    source += advance;
    depth -= PANEL::kDepth;
  }

 private:
  static __device__ __forceinline__ int clamp(int value) {
    return min(max(value, 0), kPerChunk);
  }
  // Elements of a pass's chunk that exist.
  __device__ __forceinline__ int count(int pass) const {
    const int at = row + pass * kRowStep;
    const int exist = PANEL::kDeep ? clamp(depth) : clamp(limit);
    return at < (PANEL::kDeep ? limit : depth) ? exist : 0;
  }
  __device__ __forceinline__ bool inside(int pass) const {
    return kCopies % THREADS == 0 || row + pass * kRowStep < PANEL::kRows;
  }
  __device__ __forceinline__ unsigned int target(unsigned int tile, int pass) const {
    return tile + to + PANEL::offset(row + pass * kRowStep, chunk);
  }
};
