// What a warp of a block asks for that trains nothing: the examples of the next step. It also makes the
// rule of its update and adds up losses, so that nobody who trains does. It is the last, behind the
// kThreads threads that train, and meets them once a turn (sync_with_fetcher). Where roles have parted no
// barrier is one of all threads, which compute-sanitizer's synccheck wants reached at one place.
#pragma once
#include "device/some_threads.cuh"
#include "onchip_input.cuh"

// Those who train and the warp that fetches hand each other what each has made, for the `phase`-th time
// from 0 on: at a barrier in shared memory at which each thread arrives, which racecheck understands (with bar.sync of
// all of a block's warps by another number than 0 it took reads ahead of it for later than writes behind),
// or where there is no waiting for one (below sm_90) at a barrier of all their threads.
template <typename SHAPE>
__device__ __forceinline__ void sync_with_fetcher(unsigned int barrier, int phase) {
  if constexpr (kBulk) {
    ptx::arrive(barrier);
    ptx::wait_for(barrier, phase & 1);
  } else {
    ptx::sync_some<2, SHAPE::kThreads + 32>();
  }
}

// Asks for `count` numbers of `order` from `first` on.
__device__ __forceinline__ void fetch_order_apart(int* to, const int* __restrict__ order,
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
  constexpr int once = smaller(ceil_div(SHAPE::kColumns, 32), 4);
#pragma unroll 1
  for (int begin = lane_index(); begin < SHAPE::kColumns; begin += 32 * once) {
    int label[once];
#pragma unroll
    for (int i = 0; i < once; ++i) {
      const int row = begin + 32 * i;
      label[i] = row < rows ? static_cast<int>(labels[example_of<ORDERED>(fetched, first, row)])
                            : -1;
    }
#pragma unroll
    for (int i = 0; i < once; ++i) {
      if (begin + 32 * i < SHAPE::kColumns) to[begin + 32 * i] = label[i];
    }
    if constexpr (SHAPE::kColumns <= 32 * once) break;
  }
}

// Lanes that ask for a row of so many chunks: a power of two, so that a warp has one row, or some.
__device__ __forceinline__ constexpr int lanes_of_row(int chunks) {
  int lanes = 1;
  while (lanes < chunks && lanes < 32) lanes *= 2;
  return lanes;
}

// As fetch_rows. A warp alone waits for each of its instructions (some 150 cycles of an H200 a row of 30),
// so that a copy takes few, and four rows are under way at once.
template <typename SHAPE, bool ORDERED, int WIDTH, int PITCH, typename T>
__device__ __forceinline__ void fetch_rows_apart(T* to, const T* __restrict__ matrix, int ld,
                                                 int from, int width, const int* fetched,
                                                 long long first, int rows, unsigned int barrier) {
  constexpr int size = static_cast<int>(sizeof(T));
  constexpr int each = 16 / size;
  if constexpr (by_engine<SHAPE, WIDTH, T>()) {
    const int whole = width / each * each;
#pragma unroll 1
    for (int row = lane_index(); row < rows; row += 32) {
      const T* const source = matrix + example_of<ORDERED>(fetched, first, row) * ld + from;
      const unsigned int there = ptx::shared_address(to + row * PITCH);
      if (whole > 0) ptx::load_bulk(there, source, engine_bytes<SHAPE, WIDTH, T>(width), barrier);
      if (whole < width) {
        ptx::copy_async(there + whole * size, source + whole, (width - whole) * size);
      }
    }
  } else {
    constexpr int chunks = ceil_div(WIDTH, each);
    constexpr int across = lanes_of_row(chunks);
    constexpr int down = 32 / across;
    constexpr int once = smaller(ceil_div(SHAPE::kColumns, down), 4);
    const int chunk = lane_index() % across;
    const int begin = lane_index() / across;
    const T* const base = matrix + from + chunk * each;
    const unsigned int there = ptx::shared_address(to) +
                               static_cast<unsigned int>((begin * PITCH + chunk * each) * size);
#pragma unroll 1
    for (int done = 0; done < rows - begin; done += once * down) {
      long long examples[once];
#pragma unroll
      for (int i = 0; i < once; ++i) {
        const int row = begin + done + i * down;
        examples[i] = row < rows ? example_of<ORDERED>(fetched, first, row) : 0;
      }
#pragma unroll
      for (int i = 0; i < once; ++i) {
        const T* const source = base + examples[i] * ld;
        const unsigned int row = there + static_cast<unsigned int>((done + i * down) * PITCH * size);
#pragma unroll
        for (int c = 0; c < chunks; c += across) {
          const int exist = min(16, (width - (c + chunk) * each) * size);
          if (exist > 0 && begin + done + i * down < rows) {
            ptx::copy_async(row + c * 16, source + c * each, exist);
          }
        }
      }
    }
  }
}
