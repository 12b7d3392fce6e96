// A batch from the data set into shared memory, ahead of the step that needs it: rows as they are, in
// the background, and then as floats, scaled and normalised, unless they lie as products read them: as
// float32, or in 16 bits.
#pragma once
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "persistent/block.cuh"

// Which example of the data set a group's row is: its place in the epoch's order, or the order's
// element there, which was fetched a step ahead.
template <bool ORDERED>
__device__ __forceinline__ long long example_of(const int* fetched, long long first, int row) {
  if constexpr (ORDERED) return fetched[row];
  return first + row;
}

// The place of a thread among those that ask for something, all from FREE on, when they go round from the
// START-th of these on: so other warps ask for targets and for the order than for most rows, and nobody
// asks for everything one behind the other (which took 710 cycles of an H200, a warp in the mean 470).
template <typename SHAPE, int FREE, int START>
__device__ __forceinline__ int place_in_turn() {
  static_assert(START % 32 == 0 && START < SHAPE::kThreads - FREE, "a warp that asks");
  const int place = thread_index() - FREE - START;
  return START == 0 || place >= 0 ? place : place + SHAPE::kThreads - FREE;
}

// Asks for `count` numbers of `order` from `first` on. As in what follows, the threads from FREE on do
// it, which alone call it; those below work on something else.
template <typename SHAPE, int FREE, int START>
__device__ __forceinline__ void fetch_order(int* to, const int* __restrict__ order,
                                            long long first, int count) {
#pragma unroll 1
  for (int i = place_in_turn<SHAPE, FREE, START>(); i < count; i += SHAPE::kThreads - FREE) {
    ptx::copy_async<4>(ptx::shared_address(to + i), order + first + i);
  }
}

// The numbers of the first turn's examples and of the second's, by ordinary loads: nobody waits for what else
// is on its way.
template <typename SHAPE>
__device__ __forceinline__ void first_orders(int* to, const int* __restrict__ order, long long first,
                                             int count, long long second, int second_count) {
  for (int i = thread_index(); i < SHAPE::kColumns; i += SHAPE::kThreads) {
    const int a = i < count ? order[first + i] : 0;
    const int b = i < second_count ? order[second + i] : 0;
    to[i] = a, to[SHAPE::kColumns + i] = b;
  }
}

// Whether rows come by the copy engine: one instruction each, and no thread waits for addresses.
#if defined(RAWNN_TWIN)
constexpr bool kBulk = true;
#else
constexpr bool kBulk = RAWNN_ARCH >= 900;
#endif

// Whether rows of WIDTH elements come so. The copy engine takes one request in 21 to 27 cycles (H200:
// 2,630 for 96 rows of 176 bytes, 2,710 for 128), all warps together ask for 16 bytes in about a quarter of
// one: so it is for rows of more than 768 bytes (a step of 688-3 at batch 96 takes 3.44 us in place of 4.16,
// of 784-10 at 128 in one cluster 4.65 of 5.32, of 192-800 at 640, rows of 768 bytes, 19.3 of 19.8), and
// where each thread would have several copies.
template <typename SHAPE, int WIDTH, typename T>
__device__ __forceinline__ constexpr bool by_engine() {
  constexpr int chunks = ceil_div(WIDTH * static_cast<int>(sizeof(T)), 16);
  return kBulk && chunks > 48 && chunks * SHAPE::kColumns > 2 * SHAPE::kThreads;
}

// How many threads ask for the rows, in whole warps.
template <typename SHAPE, int WIDTH, typename T>
__device__ __forceinline__ constexpr int fetching_threads() {
  if (by_engine<SHAPE, WIDTH, T>()) return SHAPE::kColumns * 32;
  return ceil_div(SHAPE::kColumns * ceil_div(WIDTH * static_cast<int>(sizeof(T)), 16), 32) * 32;
}

// Bytes of a row of `width` elements that the copy engine brings: whole chunks of 16.
template <typename SHAPE, int WIDTH, typename T>
__device__ __forceinline__ int engine_bytes(int width) {
  if constexpr (!by_engine<SHAPE, WIDTH, T>()) return 0;
  return width * static_cast<int>(sizeof(T)) / 16 * 16;
}

// Asks for `rows` rows of a matrix, WIDTH elements of each at most, of which `width` exist from
// column `from` on; PITCH elements lie between rows of `to`. What is no whole chunk is filled up
// with zeros. With the copy engine, `barrier`, which expects them, says when whole chunks are there;
// for the rest there is wait_for_copies.
template <typename SHAPE, int FREE, int START, bool ORDERED, int WIDTH, int PITCH, typename T>
__device__ __forceinline__ void fetch_rows(T* to, const T* __restrict__ matrix, int ld, int from,
                                           int width, const int* fetched, long long first, int rows,
                                           unsigned int barrier) {
  constexpr int each = 16 / static_cast<int>(sizeof(T));
  constexpr int chunks = (WIDTH + each - 1) / each;
  if constexpr (by_engine<SHAPE, WIDTH, T>()) {
    // The copy engine takes one lane's request at a time, so that the rows go round the warps.
    const int lane = lane_index();
    if (lane > 1) return;
    const int whole = width / each * each;
#pragma unroll 1
    for (int row = place_in_turn<SHAPE, FREE, START>() / 32; row < rows;
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
    for (int i = place_in_turn<SHAPE, FREE, START>(); i < rows * chunks;
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

// Zeros in the rows of x from `rows` on.
template <typename SHAPE, int PITCH, typename T>
__device__ __forceinline__ void clear_rows(T* x, int rows) {
#pragma unroll 1
  for (int i = rows * PITCH + thread_index(); i < SHAPE::kColumns * PITCH; i += SHAPE::kThreads) {
    x[i] = 0.0f;
  }
}

// x = (raw * scale - mean) * inverse_std for rows [rows, WIDTH]; of a row `width` elements exist.
// mean and inverse_std lie in shared memory, or NORMALISED is false.
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

// The labels of the next step, kept in registers until this step's have been used.
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
      const int row = i * kLoaders + place_in_turn<SHAPE, FREE, START>();
      value[i] = row < rows ? static_cast<int>(labels[example_of<ORDERED>(fetched, first, row)])
                            : -1;
    }
  }
  // All threads may call it.
  __device__ __forceinline__ void store(int* to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = i * kLoaders + place_in_turn<SHAPE, FREE, START>();
      if (thread_index() >= FREE && row < SHAPE::kColumns) to[row] = value[i];
    }
  }
};
