// A batch from the data set into shared memory, ahead of the step that needs it: rows as they are, in
// the background, and then as floats, scaled and normalised.
//
// One warp of a block asks for all of it, and does nothing else but what a step needs by itself, the rule of
// the update and the sum of the losses: it is the last, behind the kThreads threads that train, and meets
// them once a step, where all threads do (__syncthreads). So nobody who trains asks for anything.
#pragma once
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "onchip_device.cuh"

// Which example of the data set a group's row is: its place in the epoch's order, or the order's
// element there, which was fetched a step ahead.
template <bool ORDERED>
__device__ __forceinline__ long long example_of(const int* fetched, long long first, int row) {
  if constexpr (ORDERED) return fetched[row];
  return first + row;
}

// Asks for `count` numbers of `order` from `first` on.
__device__ __forceinline__ void fetch_order(int* to, const int* __restrict__ order,
                                            long long first, int count) {
#pragma unroll 1
  for (int i = lane_index(); i < count; i += 32) {
    ptx::copy_async<4>(ptx::shared_address(to + i), order + first + i);
  }
}

// The labels of a group's rows, -1 beyond them.
template <typename SHAPE, bool ORDERED, typename T>
__device__ __forceinline__ void fetch_labels(int* to, const T* __restrict__ labels,
                                             const int* fetched, long long first, int rows) {
  [[maybe_unused]] constexpr int once = smaller(ceil_div(SHAPE::kColumns, 32), 4);
#pragma unroll once
  for (int row = lane_index(); row < SHAPE::kColumns; row += 32) {
    int label = -1;
    if (row < rows) label = static_cast<int>(labels[example_of<ORDERED>(fetched, first, row)]);
    to[row] = label;
  }
}

// Whether rows come by the copy engine: one instruction each, and no thread waits for addresses.
#if defined(RAWNN_TWIN)
constexpr bool kBulk = true;
#else
constexpr bool kBulk = RAWNN_ARCH >= 900;
#endif

// Whether rows of WIDTH elements come so. The copy engine takes one request in 21 to 27 cycles (H200:
// 2,630 for 96 rows of 176 bytes, 2,710 for 128): so it is for rows of more than 768 bytes.
template <typename SHAPE, int WIDTH, typename T>
__device__ __forceinline__ constexpr bool by_engine() {
  return kBulk && ceil_div(WIDTH * static_cast<int>(sizeof(T)), 16) > 48;
}

// Bytes of a row of `width` elements that the copy engine brings: whole chunks of 16.
template <typename SHAPE, int WIDTH, typename T>
__device__ __forceinline__ int engine_bytes(int width) {
  if constexpr (!by_engine<SHAPE, WIDTH, T>()) return 0;
  return width * static_cast<int>(sizeof(T)) / 16 * 16;
}

// Lanes that ask for a row of so many chunks: a power of two, so that a warp has one row, or some.
__device__ __forceinline__ constexpr int lanes_of_row(int chunks) {
  int lanes = 1;
  while (lanes < chunks && lanes < 32) lanes *= 2;
  return lanes;
}

// Asks for `rows` rows of a matrix, WIDTH elements of each at most, of which `width` exist from
// column `from` on; PITCH elements lie between rows of `to`. What is no whole chunk is filled up
// with zeros. With the copy engine, `barrier`, which expects them, says when whole chunks are there;
// for the rest there is wait_for_copies.
template <typename SHAPE, bool ORDERED, int WIDTH, int PITCH, typename T>
__device__ __forceinline__ void fetch_rows(T* to, const T* __restrict__ matrix, int ld, int from,
                                           int width, const int* fetched, long long first, int rows,
                                           unsigned int barrier) {
  constexpr int each = 16 / static_cast<int>(sizeof(T));
  if constexpr (by_engine<SHAPE, WIDTH, T>()) {
    const int whole = width / each * each;
#pragma unroll 1
    for (int row = lane_index(); row < rows; row += 32) {
      const T* const source = matrix + example_of<ORDERED>(fetched, first, row) * ld + from;
      const unsigned int there = ptx::shared_address(to + row * PITCH);
      if (whole > 0) ptx::load_bulk(there, source, engine_bytes<SHAPE, WIDTH, T>(width), barrier);
      if (whole < width) {
        ptx::copy_async(there + whole * static_cast<int>(sizeof(T)), source + whole,
                        (width - whole) * static_cast<int>(sizeof(T)));
      }
    }
  } else {
    constexpr int chunks = (WIDTH + each - 1) / each;
    constexpr int across = lanes_of_row(chunks);
    const int chunk = lane_index() % across;
#pragma unroll 2
    for (int row = lane_index() / across; row < rows; row += 32 / across) {
      const T* const source =
          matrix + example_of<ORDERED>(fetched, first, row) * ld + from + chunk * each;
      const unsigned int there = ptx::shared_address(to + row * PITCH + chunk * each);
#pragma unroll
      for (int i = 0; i < chunks; i += across) {
        const int column = (i + chunk) * each;
        if (column < width) {
          ptx::copy_async(there + i * 16, source + i * each,
                          min(each, width - column) * static_cast<int>(sizeof(T)));
        }
      }
    }
  }
}

// Zeros in the rows of x from `rows` on.
template <typename SHAPE, int PITCH>
__device__ __forceinline__ void clear_rows(float* x, int rows) {
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
