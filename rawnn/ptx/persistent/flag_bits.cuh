// Data in global memory that carries its own flag bit (device/marks.cuh). Four floats travel together. The
// lowest bit of the last is the flag bit, which costs that float at most one unit in the last place. The flag
// bit of a slot changes with every write, so no slot is ever reset.
//
// Four bfloat16 take half the bytes, two words. The flag bit is the lowest bit of the second word, so it
// costs the third value one unit in the last place.
#pragma once
#include "device/convert.cuh"
#include "device/marks.cuh"
#include "persistent/block.cuh"

// Frees the lowest bit of the last float: a value between two neighbours is rounded to the odd one.
// Infinities and NaN stay what they are.
__device__ __forceinline__ float4 round_for_flag_bit(float4 v) {
  const unsigned int bits = __float_as_uint(v.w);
  v.w = __uint_as_float((bits | (bits & 1u) << 1) & ~1u);
  return v;
}

// The values that were sent: with a flag bit, an infinity would be a NaN.
__device__ __forceinline__ float4 without_flag_bit(float4 v) {
  v.w = __uint_as_float(__float_as_uint(v.w) & ~1u);
  return v;
}

__device__ __forceinline__ uint2 without_flag_bit(uint2 v) { return make_uint2(v.x, v.y & ~1u); }

// Four values as they are sent: as float32 (V is float4) or as bfloat16 (V is uint2).
template <typename V>
__device__ __forceinline__ V encode(const float4& v) {
  if constexpr (sizeof(V) == sizeof(float4)) {
    return round_for_flag_bit(v);
  } else {
    const unsigned int last = ptx::pack_bf16(v.z, v.w);
    return make_uint2(ptx::pack_bf16(v.x, v.y), (last | (last & 1u) << 1) & ~1u);
  }
}

// The values of what encode() made, without its flag bit.
__device__ __forceinline__ float4 decode(const float4& v) { return v; }

__device__ __forceinline__ float4 decode(const uint2& v) {
  return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                     __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

template <typename V>
__device__ __forceinline__ void send_flagged(V* to, const float4& v, unsigned int flag_bit) {
  ptx::store_flagged(to, encode<V>(v), flag_bit);
}

// Receives place(0) to place(MANY - 1), once all of them have the flag bit. `wait` is the name of the wait.
// All loads are issued together, and those that came too early are issued again: a round trip to L2 takes as
// long for one as for all. No first load is conditional: with a branch between two loads, the compiler checks
// the first before it issues the second, which costs another round trip.
template <int MANY, typename V, typename P>
__device__ __forceinline__ void receive_flagged(V (&v)[MANY], P place, unsigned int flag_bit, int wait) {
  unsigned int missing = 0;
#pragma unroll
  for (int i = 0; i < MANY; ++i) v[i] = ptx::load_flagged(place(i));
#pragma unroll
  for (int i = 0; i < MANY; ++i) ptx::check_flag_bit(missing, place(i), v[i], flag_bit);
  int tries = 0;
#pragma unroll 1
  while ((missing & 1u) != 0) {
    ptx::poll_again(tries, wait);
#pragma unroll
    for (int i = 0; i < MANY; ++i) {
      missing = 0;
      ptx::check_flag_bit(missing, place(i), v[i], flag_bit);
      if ((missing & 1u) != 0) v[i] = ptx::load_flagged(place(i));
    }
    missing = 0;
#pragma unroll
    for (int i = 0; i < MANY; ++i) ptx::check_flag_bit(missing, place(i), v[i], flag_bit);
  }
#pragma unroll
  for (int i = 0; i < MANY; ++i) v[i] = without_flag_bit(v[i]);
}
