// The exchange of blocks that are no cluster: through global memory, which the L2 cache holds. Any
// number of blocks that run at once can share layers so. What all of a group want is written once,
// to a box that they have in common; partial sums go to the box of the block that adds them up. Two
// boxes take turns, as mailboxes in shared memory do, for the same reason (onchip_exchange.cuh).
//
// Behind its stores each block sets a flag for every other, to the number of the exchange, and waits
// for the flags that are its own: nobody else reads those, so that no line of the cache is asked for
// by all while all write to it. (A counter that all add to and wait for took 17 ns more for each
// block of a group, this 3 ns; numbers that carry their message's beside them, and are waited for
// themselves, took up to ten times as long a KB, as every store meets those who wait for it. H200.)
// One fence of a warp ahead of relaxed stores instead of releases, and polls without acquires, were no
// faster: 800 cycles pass until the stores ahead are acknowledged, 1,100 to 1,700 until flags are seen.
// The number goes on from launch to launch, and may wrap around.
// Limit: stores, flag and loads one behind the other, and the bytes (cost.py has what was fitted).
#pragma once
#include "device/grid.cuh"
#include "onchip_device.cuh"

// COMMON floats of the box of all, OWN of each block's, and kFlags words for each. `boxes` are this
// group's, two of each.
template <typename SHAPE, int COMMON, int OWN>
struct FarMail {
  static constexpr int kFlags = ceil_div(SHAPE::kRanks, 32) * 32;
  float* boxes;
  unsigned int* flags;  // of this group: [receiver][sender]
  int rank;
  unsigned int& exchanges;

  __device__ __forceinline__ float* common() const {
    return boxes + (exchanges & 1) * (COMMON + SHAPE::kRanks * OWN);
  }
  __device__ __forceinline__ float* own(int of) const { return common() + COMMON + of * OWN; }
  // Four neighbouring floats to one block, or to all; one float to all.
  __device__ __forceinline__ void send(int to, int place, float4 v) const {
    __stcg(reinterpret_cast<float4*>(own(to) + place), v);
  }
  __device__ __forceinline__ void send_to_all(int place, float4 v) const {
    __stcg(reinterpret_cast<float4*>(common() + place), v);
  }
  __device__ __forceinline__ void send_one_to_all(int place, float value) const {
    __stcg(common() + place, value);
  }
  // Behind all that the block sends; every thread calls it.
  __device__ __forceinline__ void sent() const {
    __syncthreads();
    for (int to = thread_index(); to < SHAPE::kRanks; to += SHAPE::kThreads) {
      ptx::store_release(flags + to * kFlags + rank, exchanges + 1u);
    }
  }
  // What came to all, or to this block; every thread calls it, and reads until the next barrier.
  __device__ __forceinline__ const float* gathered() const {
    const float* const box = common();
    await();
    return box;
  }
  __device__ __forceinline__ const float* received() const {
    const float* const box = own(rank);
    await();
    return box;
  }
  __device__ __forceinline__ void await() const {
    for (int from = thread_index(); from < SHAPE::kRanks; from += SHAPE::kThreads) {
      ptx::wait_for_count(flags + rank * kFlags + from, exchanges + 1u, kExchange);
    }
    ++exchanges;
    __syncthreads();
  }
  static constexpr int kExchange = 3;  // the name of the wait
};

// The first `count` of ROWS rows of a box, each the sum of PARTS parts ROWS rows apart: LANES lanes add
// up as many parts each, in their order, and then their sums by pairs. body(row, column, four values).
template <typename SHAPE, int PARTS, int ROWS, int LANES, typename F>
__device__ __forceinline__ void add_received(const float* box, int count, F body) {
  constexpr int across = SHAPE::kSent / 4;
  constexpr int most = 8;  // loads that a thread has under way
  if constexpr (PARTS == 1) {
    constexpr int wanted = ceil_div(ROWS * across, SHAPE::kThreads);
    constexpr int each = wanted < most ? wanted : most;
    const int all = count * across;
#pragma unroll 1
    for (int first = thread_index(); first < all; first += each * SHAPE::kThreads) {
      float4 values[each];
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int item = min(first + i * SHAPE::kThreads, all - 1);
        values[i] = __ldcg(reinterpret_cast<const float4*>(box) + item);
      }
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int item = first + i * SHAPE::kThreads;
        if (item < all) body(item / across, item % across * 4, values[i]);
      }
    }
  } else {
    constexpr int each = ceil_div(PARTS, LANES);
    constexpr int once = each < most ? each : most;
    const int all = count * across * LANES;
    const int begin = lane_index() % LANES * each;
    const int end = min(begin + each, PARTS);
#pragma unroll 1
    for (int i = thread_index(); i - lane_index() < all; i += SHAPE::kThreads) {
      const int item = i / LANES;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (i < all) {
#pragma unroll 1
        for (int first = begin; first < end; first += once) {
          float4 values[once];
#pragma unroll
          for (int k = 0; k < once; ++k) {
            const int part = min(first + k, end - 1);
            values[k] = __ldcg(reinterpret_cast<const float4*>(box) + part * (ROWS * across) + item);
          }
#pragma unroll
          for (int k = 0; k < once; ++k) {
            if (first + k < end) {
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
      if (i < all && lane_index() % LANES == 0) body(item / across, item % across * 4, sum);
    }
  }
}
