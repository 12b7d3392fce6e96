// Messages of 16-bit numbers between the blocks of a group, where products take such: eight neighbours of a
// row are sixteen bytes. Who sends rounds: what lies in 16 bits where it comes to is copied there. Parts of
// sums are bfloat16 alone, each off by 2^-9 of itself at most, and added up as float32: a float16 may be too
// small for a part of what it can hold.
//
// A message of ROWS rows is [columns / 8][ROWS][8], so that a tile's rows lie side by side, and of parts
// of sums one behind the other.
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

  __device__ __forceinline__ void operator()(int row, int column, const Eight& v) const {
    send(row, column, quad_of(made(row, column, v.low.x, v.low.y),
                              made(row, column + 2, v.low.z, v.low.w),
                              made(row, column + 4, v.high.x, v.high.y),
                              made(row, column + 6, v.high.z, v.high.w)));
  }
};

template <typename MADE, typename SEND>
__device__ __forceinline__ SendEights<MADE, SEND> eights(MADE made, SEND send) {
  return {made, send};
}

template <typename MADE, typename SEND>
constexpr bool kTakesEights<SendEights<MADE, SEND>> = true;

// A body that takes eight numbers or four, of one that takes four.
template <typename F>
struct ByFours {
  F body;

  __device__ __forceinline__ void operator()(int row, int column, const float4& v) const {
    body(row, column, v);
  }
  __device__ __forceinline__ void operator()(int row, int column, const Eight& v) const {
    body(row, column, v.low);
    body(row, column + 4, v.high);
  }
};

template <typename F>
__device__ __forceinline__ ByFours<F> by_fours(F body) {
  return {body};
}

// ask(words, quad) brings what lies at quad(0), quad(1), ... of a message of ROWS rows, all of which go to
// where products read them.
template <typename SHAPE, int ROWS, typename ASK>
__device__ __forceinline__ void keep_quads(Half* to, ASK ask) {
  constexpr int items = ROWS * (SHAPE::kColumns / 8);
  constexpr int each = smaller(ceil_div(items, SHAPE::kThreads), kAskedFor);
#pragma unroll 1
  for (int first = thread_index(); first < items; first += each * SHAPE::kThreads) {
    float4 words[each];
    ask(words, [=](int i) {
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

// A message in a mailbox of a cluster.
template <typename SHAPE, int ROWS>
__device__ __forceinline__ void keep_eights(const float* box, Half* to) {
  keep_quads<SHAPE, ROWS>(to, [=](auto& words, auto quad) {
    constexpr int many = sizeof(words) / sizeof(float4);
#pragma unroll
    for (int i = 0; i < many; ++i) words[i] = reinterpret_cast<const float4*>(box)[quad(i)];
  });
}

// A message through the L2 cache.
template <typename SHAPE, int ROWS, typename MAIL>
__device__ __forceinline__ void keep_received(const MAIL& mail, int place, Half* to) {
  keep_quads<SHAPE, ROWS>(to, [&](auto& words, auto quad) {
    mail.take(words, place, quad);
    constexpr int many = sizeof(words) / sizeof(float4);
#pragma unroll
    for (int i = 0; i < many; ++i) words[i] = eight_told(words[i]);
  });
}

template <typename SHAPE>
__device__ __forceinline__ float4 unpack_four(unsigned int first, unsigned int second) {
  const float2 low = unpack_halves<SHAPE>(first), high = unpack_halves<SHAPE>(second);
  return make_float4(low.x, low.y, high.x, high.y);
}

// How such a message lies in quads (add_received).
template <typename SHAPE, int ROWS>
struct InEights {
  using Numbers = Eight;
  static constexpr int kQuads = ROWS * (SHAPE::kColumns / 8);
  static constexpr int kWide = 8;

  static __device__ __forceinline__ bool there(int quad, int count) { return row(quad) < count; }
  static __device__ __forceinline__ int row(int quad) { return quad % ROWS; }
  static __device__ __forceinline__ int column(int quad) { return quad / ROWS * 8; }
  static __device__ __forceinline__ Eight numbers(const float4& came) {
    const float4 words = eight_told(came);
    return {unpack_four<SHAPE>(__float_as_uint(words.x), __float_as_uint(words.y)),
            unpack_four<SHAPE>(__float_as_uint(words.z), __float_as_uint(words.w))};
  }
};

template <typename SHAPE>
__device__ __forceinline__ void load_halves(float2& v, const Half* from) {
  v = load_two<SHAPE>(from);
}

template <typename SHAPE>
__device__ __forceinline__ void load_halves(float4& v, const Half* from) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  v = unpack_four<SHAPE>(words.x, words.y);
}

template <typename SHAPE>
__device__ __forceinline__ void load_halves(Eight& v, const Half* from) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  v = {unpack_four<SHAPE>(words.x, words.y), unpack_four<SHAPE>(words.z, words.w)};
}

// add_parts of a message in a mailbox: the sums of PARTS parts of ROWS rows each, of which `count` are there.
template <typename SHAPE, int PARTS, int ROWS, typename F>
__device__ __forceinline__ void add_eights(const float* box, int count, F body) {
  constexpr int all = ROWS * SHAPE::kColumns;
  constexpr int wide = kGivenAtOnce<SHAPE, F, all>;
  using Numbers = typename Several<wide>::Numbers;
  constexpr int items = all / wide;
  constexpr int each_eight = 8 / wide;  // items
  constexpr int each = smaller(ceil_div(items, SHAPE::kThreads), ceil_div(4, PARTS));
  const Half* const parts = reinterpret_cast<const Half*>(box);
  const auto row_of = [=](int item) { return item / each_eight % ROWS; };
#pragma unroll 1
  for (int first = thread_index(); first < items; first += each * SHAPE::kThreads) {
    Numbers v[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int item = first + i * SHAPE::kThreads;
      v[i] = {};
      if (item >= items || row_of(item) >= count) continue;  // what has not come is not looked at
      const Half* const from = parts + item * wide;
      load_halves<SHAPE>(v[i], from);
#pragma unroll
      for (int part = 1; part < PARTS; ++part) {
        Numbers more;
        load_halves<SHAPE>(more, from + part * all);
        add_to(v[i], more);
      }
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int item = first + i * SHAPE::kThreads;
      const int row = row_of(item);
      const int column = item / each_eight / ROWS * 8 + item % each_eight * wide;
      if (item < items && row < count) body(row, column, v[i]);
    }
    if constexpr (items <= each * SHAPE::kThreads) break;
  }
}
