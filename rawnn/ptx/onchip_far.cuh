// The exchange of blocks that are no cluster, or that leave its mailboxes no room: through global
// memory, which the L2 cache holds. Any number of blocks that run at once can share layers so. What
// all of a group want is written once, to a box that they have in common; partial sums go to the box
// of the block that adds them up. Boxes take turns as mailboxes in shared memory do, for the same
// reason (onchip_exchange.cuh), and nobody empties them. A message is one of two kinds, by its size:
//
//   Marked    every float has the number of the exchange beside it, so that whoever finds that has the
//             float as well: twice the bytes, but one way through the L2 cache
//   Counted   as they are; the group's blocks count themselves behind their stores, and wait for all
//
// `exchanges` counts both kinds, from what the launch before came to; it and `meetings` may wrap around.
// Limit: the bytes that come to a block, some 24 to 64 a cycle, and 1,500 or 3,000 cycles (H200,
// expected, not measured).
#pragma once
#include "device/grid.cuh"
#include "device/marked.cuh"
#include "onchip_device.cuh"

// A filled box: `places` of its floats are those of mailboxes, rows of kColumns. Of four neighbours the
// second pair lies half a row behind the first, so that lanes read side by side.
template <typename SHAPE>
struct MarkedBox {
  static constexpr int kAtOnce = 4;  // fours of floats that a thread asks for at once
  const unsigned long long* first;
  unsigned int mark;

  static __device__ __forceinline__ int at(int place) {
    const int column = place % SHAPE::kColumns;
    return place - column + column % 4 / 2 * (SHAPE::kColumns / 2) + column / 4 * 2 + column % 2;
  }
  template <int COUNT>
  __device__ __forceinline__ void read(float4 (&values)[COUNT], const int (&places)[COUNT]) const {
    const unsigned long long* from[2 * COUNT];
    float2 pairs[2 * COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      from[2 * i] = first + at(places[i]);
      from[2 * i + 1] = from[2 * i] + SHAPE::kColumns / 2;
    }
    ptx::wait_for_marked(pairs, from, mark, 1);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      values[i] = make_float4(pairs[2 * i].x, pairs[2 * i].y, pairs[2 * i + 1].x,
                              pairs[2 * i + 1].y);
    }
  }
  __device__ __forceinline__ float read_one(int place) const {
    return ptx::wait_for_marked_one(first + at(place), mark, 2);
  }
};

template <typename SHAPE>
struct CountedBox {
  static constexpr int kAtOnce = 8;
  const float* first;

  template <int COUNT>
  __device__ __forceinline__ void read(float4 (&values)[COUNT], const int (&places)[COUNT]) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      values[i] = __ldcg(reinterpret_cast<const float4*>(first + places[i]));
    }
  }
};

// COMMON floats of the box of all, OWN of each block's. `boxes` are this group's, two of each.
template <typename SHAPE, int COMMON, int OWN>
struct MarkedMail {
  unsigned long long* boxes;
  int rank;
  unsigned int& exchanges;

  __device__ __forceinline__ unsigned long long* common() const {
    return boxes + (exchanges & 1) * (COMMON + SHAPE::kRanks * OWN);
  }
  __device__ __forceinline__ unsigned long long* own(int of) const {
    return common() + COMMON + of * OWN;
  }
  __device__ __forceinline__ void store(unsigned long long* box, int place, float4 v) const {
    unsigned long long* const to = box + MarkedBox<SHAPE>::at(place);
    ptx::store_marked(to, v.x, v.y, exchanges + 1u);
    ptx::store_marked(to + SHAPE::kColumns / 2, v.z, v.w, exchanges + 1u);
  }
  // Four neighbouring floats to one block, or to all.
  __device__ __forceinline__ void send(int to, int place, float4 v) const {
    store(own(to), place, v);
  }
  __device__ __forceinline__ void send_to_all(int place, float4 v) const {
    store(common(), place, v);
  }
  // One float; what is sent must be read.
  __device__ __forceinline__ void send_one(int to, int place, float value) const {
    ptx::store_marked(own(to) + MarkedBox<SHAPE>::at(place), value, exchanges + 1u);
  }
  __device__ __forceinline__ void send_one_to_all(int place, float value) const {
    ptx::store_marked(common() + MarkedBox<SHAPE>::at(place), value, exchanges + 1u);
  }
  // What came to all, or to this block: each read waits for what it reads, until the next barrier of
  // the block.
  __device__ __forceinline__ MarkedBox<SHAPE> gathered() const {
    const unsigned long long* const box = common();
    return {box, ++exchanges};
  }
  __device__ __forceinline__ MarkedBox<SHAPE> received() const {
    const unsigned long long* const box = own(rank);
    return {box, ++exchanges};
  }
};

template <typename SHAPE, int COMMON, int OWN>
struct CountedMail {
  float* boxes;
  unsigned int* counter;  // of the group
  int rank;
  unsigned int& exchanges;
  unsigned int& meetings;

  __device__ __forceinline__ float* common() const {
    return boxes + (exchanges & 1) * (COMMON + SHAPE::kRanks * OWN);
  }
  __device__ __forceinline__ float* own(int of) const { return common() + COMMON + of * OWN; }
  __device__ __forceinline__ void send(int to, int place, float4 v) const {
    __stcg(reinterpret_cast<float4*>(own(to) + place), v);
  }
  __device__ __forceinline__ void send_to_all(int place, float4 v) const {
    __stcg(reinterpret_cast<float4*>(common() + place), v);
  }
  // Behind all that the block sends; every thread calls it.
  __device__ __forceinline__ void sent() const { ptx::arrive_at_grid(counter); }
  __device__ __forceinline__ CountedBox<SHAPE> gathered() const {
    const float* const box = common();
    meet();
    return {box};
  }
  __device__ __forceinline__ CountedBox<SHAPE> received() const {
    const float* const box = own(rank);
    meet();
    return {box};
  }
  __device__ __forceinline__ void meet() const {
    ptx::wait_for_grid(counter, ++meetings * static_cast<unsigned int>(SHAPE::kRanks), 3);
    ++exchanges;
  }
};

// The first `count` of ROWS rows of a box, each the sum of PARTS parts ROWS rows apart: LANES lanes add
// up as many parts each, in their order, and then their sums by pairs. body(row, column, four values).
template <typename SHAPE, int PARTS, int ROWS, int LANES, typename BOX, typename F>
__device__ __forceinline__ void add_received(const BOX& box, int count, F body) {
  constexpr int across = SHAPE::kColumns / 4;
  if constexpr (PARTS == 1) {
    constexpr int each = BOX::kAtOnce;
    const int all = count * across;
#pragma unroll 1
    for (int first = thread_index(); first < all; first += each * SHAPE::kThreads) {
      int places[each];
      float4 values[each];
#pragma unroll
      for (int i = 0; i < each; ++i) places[i] = min(first + i * SHAPE::kThreads, all - 1) * 4;
      box.read(values, places);
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int item = first + i * SHAPE::kThreads;
        if (item < all) body(item / across, item % across * 4, values[i]);
      }
    }
  } else {
    constexpr int each = ceil_div(PARTS, LANES);
    constexpr int once = each < BOX::kAtOnce ? each : BOX::kAtOnce;
    const int all = count * across * LANES;
    const int lane = lane_index() % LANES;
#pragma unroll 1
    for (int i = thread_index(); i - lane_index() < all; i += SHAPE::kThreads) {
      const int row = i / LANES / across;
      const int column = i / LANES % across * 4;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (i < all) {
#pragma unroll 1
        for (int first = lane * each; first < min(lane * each + each, PARTS); first += once) {
          int places[once];
          float4 values[once];
#pragma unroll
          for (int k = 0; k < once; ++k) {
            const int part = min(first + k, min(lane * each + each, PARTS) - 1);
            places[k] = (part * ROWS + row) * SHAPE::kColumns + column;
          }
          box.read(values, places);
#pragma unroll
          for (int k = 0; k < once; ++k) {
            if (first + k < min(lane * each + each, PARTS)) {
              sum.x += values[k].x, sum.y += values[k].y, sum.z += values[k].z, sum.w += values[k].w;
            }
          }
        }
      }
#pragma unroll
      for (int step = 1; step < LANES; step *= 2) {
        sum.x += __shfl_xor_sync(kFullWarp, sum.x, step);
        sum.y += __shfl_xor_sync(kFullWarp, sum.y, step);
        sum.z += __shfl_xor_sync(kFullWarp, sum.z, step);
        sum.w += __shfl_xor_sync(kFullWarp, sum.w, step);
      }
      if (i < all && lane == 0) body(row, column, sum);
    }
  }
}

// Waits for `count` floats from `place` on that say nothing but that they came.
template <typename SHAPE>
__device__ __forceinline__ void hear(const MarkedBox<SHAPE>& box, int place, int count) {
  for (int i = thread_index(); i < count; i += SHAPE::kThreads) {
    static_cast<void>(box.read_one(place + i));
  }
}
