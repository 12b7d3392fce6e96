// Numbers that say by themselves that they have come (device/marks.cuh): four floats travel together,
// the last of them with a mark in its lowest bit, which costs it at most a unit in the last place. A
// slot's mark changes each time that it is written, so that nothing is put back to what it was.
//
// Or four bfloat16, in half the bytes: two words, of which the mark is the lowest bit of the last, and so of
// the third number, which it costs as much.
#pragma once
#include "device/convert.cuh"
#include "device/marks.cuh"
#include "persistent/block.cuh"

// Four numbers of which the last needs no more than the bits that are left: rounded to the odd one of
// two neighbours, where it lay between. Infinities and NaN stay what they are.
__device__ __forceinline__ float4 markable(float4 v) {
  const unsigned int bits = __float_as_uint(v.w);
  v.w = __uint_as_float((bits | (bits & 1u) << 1) & ~1u);
  return v;
}

// The numbers that were told: an infinity with a mark is none.
__device__ __forceinline__ float4 without_mark(float4 v) {
  v.w = __uint_as_float(__float_as_uint(v.w) & ~1u);
  return v;
}

__device__ __forceinline__ uint2 without_mark(uint2 v) { return make_uint2(v.x, v.y & ~1u); }

// Numbers as they travel: as float32, or as bfloat16.
template <typename V>
__device__ __forceinline__ V as_told(const float4& v) {
  if constexpr (sizeof(V) == sizeof(float4)) {
    return markable(v);
  } else {
    const unsigned int last = ptx::pack_bf16(v.z, v.w);
    return make_uint2(ptx::pack_bf16(v.x, v.y), (last | (last & 1u) << 1) & ~1u);
  }
}

// What they are, once they are without their mark.
__device__ __forceinline__ float4 numbers_of(const float4& v) { return v; }

__device__ __forceinline__ float4 numbers_of(const uint2& v) {
  return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                     __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

template <typename V>
__device__ __forceinline__ void tell(V* to, const float4& v, unsigned int mark) {
  ptx::store_marked(to, as_told<V>(v), mark);
}

// What lies at place(0) to place(MANY - 1) once all of it has come. All are asked for at once, and again
// those that are not there: a round trip to the L2 cache takes as long for one. `what` is the name of
// the wait. (No first load is conditional: with a branch between two, the compiler looks at what one
// brought ahead of asking for the next, which is one more trip.)
template <int MANY, typename V, typename P>
__device__ __forceinline__ void hear(V (&v)[MANY], P place, unsigned int mark, int what) {
  unsigned int lacking = 0;
#pragma unroll
  for (int i = 0; i < MANY; ++i) v[i] = ptx::load_marked(place(i));
#pragma unroll
  for (int i = 0; i < MANY; ++i) ptx::look_for(lacking, place(i), v[i], mark);
  int tries = 0;
#pragma unroll 1
  while ((lacking & 1u) != 0) {
    ptx::look_again(tries, what);
#pragma unroll
    for (int i = 0; i < MANY; ++i) {
      lacking = 0;
      ptx::look_for(lacking, place(i), v[i], mark);
      if ((lacking & 1u) != 0) v[i] = ptx::load_marked(place(i));
    }
    lacking = 0;
#pragma unroll
    for (int i = 0; i < MANY; ++i) ptx::look_for(lacking, place(i), v[i], mark);
  }
#pragma unroll
  for (int i = 0; i < MANY; ++i) v[i] = without_mark(v[i]);
}
