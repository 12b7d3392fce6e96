// Messages of 16-bit numbers between the blocks of a group, of what lies in 16 bits where it comes to: eight
// neighbours of a row are sixteen bytes. Who sends rounds, so that it has the same bits as if who receives
// did. Parts of sums are float32.
//
// A message of ROWS rows is [columns / 8][ROWS][8], so that a tile's rows lie side by side.
#pragma once
#include "onchip_exchange.cuh"
#include "onchip_far.cuh"
#include "onchip_finish.cuh"
#include "onchip_halves.cuh"

__device__ __forceinline__ float4 quad_of(unsigned int first, unsigned int second, unsigned int third,
                                          unsigned int fourth) {
  return make_float4(__uint_as_float(first), __uint_as_float(second), __uint_as_float(third),
                     __uint_as_float(fourth));
}

// What is sent of the tiles of a product, or of sums: made(row, column, two numbers) is a word of what they
// are in 16 bits, send(row, column, four words) sends eight neighbours.
template <typename MADE, typename SEND>
struct SendEights {
  struct Early {};
  MADE made;
  SEND send;

  __device__ __forceinline__ Early early(int, int) const { return {}; }
  // Of four lanes that have two neighbours each of two rows, one sends the upper row, one the lower.
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4],
                                        const Early&) const {
    const int lane = lane_index();
    const int row = mt * 16 + lane / 4;
    const int column = nt * 8 + lane % 4 * 2;
    const unsigned int upper = made(row, column, sum[0], sum[1]);
    const unsigned int lower = made(row + 8, column, sum[2], sum[3]);
    const bool odd = lane % 2 != 0;
    const unsigned int other = __shfl_xor_sync(kFullWarp, odd ? upper : lower, 1);
    const unsigned int first = odd ? other : upper;
    const unsigned int second = odd ? lower : other;
    const unsigned int third = __shfl_xor_sync(kFullWarp, first, 2);
    const unsigned int fourth = __shfl_xor_sync(kFullWarp, second, 2);
    if (lane % 4 < 2) send(odd ? row + 8 : row, nt * 8, quad_of(first, second, third, fourth));
  }
  __device__ __forceinline__ void sums(int, float, float) const {}

  // Of sums that neighbouring lanes have four of each, those of a row whose columns come in eights.
  __device__ __forceinline__ void operator()(int row, int column, const float4& v) const {
    const unsigned int first = made(row, column, v.x, v.y);
    const unsigned int second = made(row, column + 2, v.z, v.w);
    const int lane = lane_index();
    const unsigned int both = 3u << (lane & ~1);
    const unsigned int third = __shfl_xor_sync(both, first, 1);
    const unsigned int fourth = __shfl_xor_sync(both, second, 1);
    if (lane % 2 == 0) send(row, column, quad_of(first, second, third, fourth));
  }
};

template <typename MADE, typename SEND>
__device__ __forceinline__ SendEights<MADE, SEND> eights(MADE made, SEND send) {
  return {made, send};
}

// Four words each of a message in a mailbox of a cluster, or through the L2 cache at a place.
struct InBox {
  const float* box;

  template <int MANY, typename P>
  __device__ __forceinline__ void take(float4 (&words)[MANY], P quad) const {
#pragma unroll
    for (int i = 0; i < MANY; ++i) words[i] = reinterpret_cast<const float4*>(box)[quad(i)];
  }
};

template <typename MAIL>
struct InMail {
  const MAIL& mail;
  int place;

  template <int MANY, typename P>
  __device__ __forceinline__ void take(float4 (&words)[MANY], P quad) const {
    mail.take(words, place, quad);
#pragma unroll
    for (int i = 0; i < MANY; ++i) words[i] = eight_told(words[i]);
  }
};

// All ROWS rows of a message, to where products read them.
template <typename SHAPE, int ROWS, typename FROM>
__device__ __forceinline__ void keep_eights(const FROM& from, Half* to) {
  constexpr int items = ROWS * (SHAPE::kColumns / 8);
  constexpr int each = smaller(ceil_div(items, SHAPE::kThreads), kAskedFor);
#pragma unroll 1
  for (int first = thread_index(); first < items; first += each * SHAPE::kThreads) {
    float4 words[each];
    from.take(words, [=](int i) {
      const int item = first + i * SHAPE::kThreads;
      return item < items ? item : first;
    });
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int item = first + i * SHAPE::kThreads;
      if (item >= items) break;
      *reinterpret_cast<float4*>(to + item % ROWS * SHAPE::kPitch + item / ROWS * 8) = words[i];
    }
    if constexpr (items <= each * SHAPE::kThreads) break;
  }
}

template <typename SHAPE, int ROWS>
__device__ __forceinline__ void keep_eights(const float* box, Half* to) {
  keep_eights<SHAPE, ROWS>(InBox{box}, to);
}

template <typename SHAPE, int ROWS, typename MAIL>
__device__ __forceinline__ void keep_received(const MAIL& mail, int place, Half* to) {
  keep_eights<SHAPE, ROWS>(InMail<MAIL>{mail, place}, to);
}
