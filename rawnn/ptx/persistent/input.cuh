// Copies the examples of a micro-batch from the data set to shared memory, ahead of the micro-batch that
// needs them. Asynchronous copies bring rows as stored. convert_rows then makes scaled and normalised floats
// of them, unless the data set is stored as GEMMs read it: as float32, or in 16 bits.
#pragma once
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "persistent/block.cuh"

// The example of the data set that a row of the group is: its place in the epoch, or the element of the batch
// order there, which was fetched a micro-batch ahead.
template <bool ORDERED>
__device__ __forceinline__ long long example_of(const int* fetched, long long first, int row) {
  if constexpr (ORDERED) return fetched[row];
  return first + row;
}

// The number of a thread among those that issue copies, which are all from FREE on, counted round-robin from
// the START-th of them. So the copies of targets and of the order go to other warps than most rows, and no
// warp issues all of them.
template <typename SHAPE, int FREE, int START>
__device__ __forceinline__ int copy_index() {
  static_assert(START % 32 == 0 && START < SHAPE::kThreads - FREE, "a warp that asks");
  const int place = thread_index() - FREE - START;
  return START == 0 || place >= 0 ? place : place + SHAPE::kThreads - FREE;
}

// Fetches `count` elements of `order` from `first` on. This and the functions below are called by the threads
// from FREE on only; the other threads do something else.
template <typename SHAPE, int FREE, int START>
__device__ __forceinline__ void fetch_order(int* to, const int* __restrict__ order,
                                            long long first, int count) {
#pragma unroll 1
  for (int i = copy_index<SHAPE, FREE, START>(); i < count; i += SHAPE::kThreads - FREE) {
    ptx::copy_async<4>(ptx::shared_address(to + i), order + first + i);
  }
}

// The batch order of the first two micro-batches, by ordinary loads: so it does not wait for other
// asynchronous copies.
template <typename SHAPE>
__device__ __forceinline__ void first_orders(int* to, const int* __restrict__ order, long long first,
                                             int count, long long second, int second_count) {
#pragma unroll 1
  for (int i = thread_index(); i < SHAPE::kColumns; i += SHAPE::kThreads) {
    const int a = i < count ? order[first + i] : 0;
    const int b = i < second_count ? order[second + i] : 0;
    to[i] = a, to[SHAPE::kColumns + i] = b;
    if constexpr (SHAPE::kColumns <= SHAPE::kThreads) break;
  }
}

// Whether the GPU has a copy engine (TMA), which copies a row by one instruction.
#if defined(RAWNN_TWIN)
constexpr bool kBulk = true;
#else
constexpr bool kBulk = RAWNN_ARCH >= 900;
#endif

// Whether the copy engine copies rows of WIDTH elements. It takes a request in 21 to 27 cycles (H200), while
// all warps together issue a copy of 16 bytes in about a quarter of a cycle. So it is worth it for rows of
// more than 768 bytes, if each thread would otherwise issue several copies.
template <typename SHAPE, int WIDTH, typename T>
__device__ __forceinline__ constexpr bool by_engine() {
  constexpr int chunks = ceil_div(WIDTH * static_cast<int>(sizeof(T)), 16);
  return kBulk && chunks > 48 && chunks * SHAPE::kColumns > 2 * SHAPE::kThreads;
}

// How many threads issue the copies of the rows, in whole warps.
template <typename SHAPE, int WIDTH, typename T>
__device__ __forceinline__ constexpr int fetching_threads() {
  if (by_engine<SHAPE, WIDTH, T>()) return SHAPE::kColumns * 32;
  return ceil_div(SHAPE::kColumns * ceil_div(WIDTH * static_cast<int>(sizeof(T)), 16), 32) * 32;
}

// Bytes of a row of `width` elements that the copy engine copies: whole chunks of 16.
template <typename SHAPE, int WIDTH, typename T>
__device__ __forceinline__ int engine_bytes(int width) {
  if constexpr (!by_engine<SHAPE, WIDTH, T>()) return 0;
  return width * static_cast<int>(sizeof(T)) / 16 * 16;
}

// Fetches `rows` rows of a matrix: of each the `width` elements from column `from` on, at most WIDTH. Rows of
// `to` are PITCH elements apart. Zeros fill the last chunk. The copy engine counts its bytes at `barrier`,
// which expects them; wait_for_copies waits for all other copies.
template <typename SHAPE, int FREE, int START, bool ORDERED, int WIDTH, int PITCH, typename T>
__device__ __forceinline__ void fetch_rows(T* to, const T* __restrict__ matrix, int ld, int from,
                                           int width, const int* fetched, long long first, int rows,
                                           unsigned int barrier) {
  constexpr int each = 16 / static_cast<int>(sizeof(T));
  constexpr int chunks = (WIDTH + each - 1) / each;
  if constexpr (by_engine<SHAPE, WIDTH, T>()) {
    // The copy engine takes one lane's request at a time, so the rows are distributed over the warps.
    const int lane = lane_index();
    if (lane > 1) return;
    const int whole = width / each * each;
#pragma unroll 1
    for (int row = copy_index<SHAPE, FREE, START>() / 32; row < rows;
         row += (SHAPE::kThreads - FREE) / 32) {
      const T* const source = matrix + example_of<ORDERED>(fetched, first, row) * ld + from;
      const unsigned int there = ptx::shared_address(to + row * PITCH);
      if (lane == 0) {
        if (whole > 0) ptx::load_bulk(there, source, engine_bytes<SHAPE, WIDTH, T>(width), barrier);
      } else if (whole < width) {
        ptx::copy_async(there + whole * static_cast<int>(sizeof(T)), source + whole,
                        (width - whole) * static_cast<int>(sizeof(T)));
      }
    }
  } else {
#pragma unroll 1
    for (int i = copy_index<SHAPE, FREE, START>(); i < rows * chunks;
         i += SHAPE::kThreads - FREE) {
      const int row = i / chunks;
      const int column = i % chunks * each;
      if (column < width) {
        const long long example = example_of<ORDERED>(fetched, first, row);
        ptx::copy_async(ptx::shared_address(to + row * PITCH + column),
                        matrix + example * ld + from + column,
                        min(each, width - column) * static_cast<int>(sizeof(T)));
      }
    }
  }
}

// Clears the rows of x from `rows` on.
template <typename SHAPE, int PITCH, typename T>
__device__ __forceinline__ void clear_rows(T* x, int rows) {
#pragma unroll 1
  for (int i = rows * PITCH + thread_index(); i < SHAPE::kColumns * PITCH; i += SHAPE::kThreads) {
    x[i] = 0.0f;
  }
}

// x = (raw * scale - mean) * inverse_std for `rows` rows of `width` elements, at most WIDTH. mean and
// inverse_std are in shared memory, and unused if NORMALISED is false.
template <typename SHAPE, bool NORMALISED, int WIDTH, int PITCH, int RAW_PITCH, typename T>
__device__ __forceinline__ void convert_rows(float* x, const T* raw, float scale,
                                             const float* mean, const float* inverse_std,
                                             int width, int rows) {
  constexpr int quads = (WIDTH + 3) / 4;
#pragma unroll 2
  for (int i = thread_index(); i < rows * quads; i += SHAPE::kThreads) {
    const int row = i / quads;
    const int column = i % quads * 4;
    const T* from = raw + row * RAW_PITCH + column;
    float values[4];
    if constexpr (sizeof(T) == 1) {
      const unsigned int word = *reinterpret_cast<const unsigned int*>(from);
#pragma unroll
      for (int q = 0; q < 4; ++q) values[q] = static_cast<float>(word >> (8 * q) & 255u);
    } else {
      load_values(values, from);
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      values[q] *= scale;
      if constexpr (NORMALISED) {
        values[q] = (values[q] - mean[column + q]) * inverse_std[column + q];
      }
      if (column + q >= width) values[q] = 0.0f;
    }
    *reinterpret_cast<float4*>(x + row * PITCH + column) =
        make_float4(values[0], values[1], values[2], values[3]);
  }
}

// The labels of the next micro-batch, in registers until those of this micro-batch have been used.
template <typename SHAPE, int FREE, int START>
struct NextLabels {
  static constexpr int kLoaders = SHAPE::kThreads - FREE;
  static constexpr int kEach = ceil_div(SHAPE::kColumns, kLoaders);
  int value[kEach];

  template <bool ORDERED, typename T>
  __device__ __forceinline__ void fetch(const T* __restrict__ labels, const int* fetched,
                                        long long first, int rows) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = i * kLoaders + copy_index<SHAPE, FREE, START>();
      value[i] = row < rows ? static_cast<int>(labels[example_of<ORDERED>(fetched, first, row)])
                            : -1;
    }
  }
  // All threads may call it.
  __device__ __forceinline__ void store(int* to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = i * kLoaders + copy_index<SHAPE, FREE, START>();
      if (thread_index() >= FREE && row < SHAPE::kColumns) to[row] = value[i];
    }
  }
};
