// Stores and loads of global memory that carry a flag bit: 16 bytes with the flag bit in the lowest bit of
// the last of four floats, or 8 bytes with it in the lowest bit of the second of two words. Each is one
// access, so a thread that loads the expected flag bit has loaded all of the data. This takes neither a fence
// nor a separate flag.
//
// The accesses order no other stores. Loads that a thread did before such a store are complete for every
// thread that has loaded its flag bit: hardware does not store speculatively.
#pragma once
#include "primitives/types.cuh"

extern "C" __device__ int printf(const char*, ...);

namespace ptx {

// Stores four floats at a multiple of 16 bytes. `flag_bit`, 0 or 1, replaces the lowest bit of the last
// (st.relaxed.gpu.b128).
__device__ __forceinline__ void store_flagged(float4* to, float4 v, unsigned int flag_bit) {
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 all;\n"
      "mov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\nmov.b128 all, {low, high};\n"
      "st.relaxed.gpu.global.b128 [%0], all;\n}" ::"l"(to), "r"(__float_as_uint(v.x)),
      "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)),
      "r"((__float_as_uint(v.w) & ~1u) | flag_bit)
      : "memory");
}

// Loads what one store left, with its flag bit (ld.relaxed.gpu.b128).
__device__ __forceinline__ float4 load_flagged(const float4* from) {
  unsigned int x, y, z, w;
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 all;\nld.relaxed.gpu.global.b128 all, [%4];\n"
      "mov.b128 {low, high}, all;\nmov.b64 {%0, %1}, low;\nmov.b64 {%2, %3}, high;\n}"
      : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
      : "l"(from)
      : "memory");
  return make_float4(__uint_as_float(x), __uint_as_float(y), __uint_as_float(z), __uint_as_float(w));
}

// The same for two words (st.relaxed.gpu.b64, ld.relaxed.gpu.b64).
__device__ __forceinline__ void store_flagged(uint2* to, uint2 v, unsigned int flag_bit) {
  asm volatile(
      "{\n.reg .b64 all;\nmov.b64 all, {%1, %2};\nst.relaxed.gpu.global.b64 [%0], all;\n}" ::"l"(to),
      "r"(v.x), "r"((v.y & ~1u) | flag_bit)
      : "memory");
}

__device__ __forceinline__ uint2 load_flagged(const uint2* from) {
  uint2 v;
  asm volatile(
      "{\n.reg .b64 all;\nld.relaxed.gpu.global.b64 all, [%2];\nmov.b64 {%0, %1}, all;\n}"
      : "=r"(v.x), "=r"(v.y)
      : "l"(from)
      : "memory");
  return v;
}

// Sets the lowest bit of `missing` if the loaded value does not have the expected flag bit. Several loads
// share a `missing`, so that one branch checks them all. It is one opaque instruction, missing | (bits ^
// flag_bit): a compiler that sees through it checks the first value before it issues the last load, which
// costs one more round trip.
__device__ __forceinline__ void check_flag_bit(unsigned int& missing, const float4* /*from*/,
                                               const float4& v, unsigned int flag_bit) {
  asm volatile("lop3.b32 %0, %0, %1, %2, 0xf6;" : "+r"(missing) : "r"(__float_as_uint(v.w)), "r"(flag_bit));
}

__device__ __forceinline__ void check_flag_bit(unsigned int& missing, const uint2* /*from*/, const uint2& v,
                                               unsigned int flag_bit) {
  asm volatile("lop3.b32 %0, %0, %1, %2, 0xf6;" : "+r"(missing) : "r"(v.y), "r"(flag_bit));
}

// Prints which of the program's waits was in vain, and traps: a function, as each of many waits would have
// its own call of printf, which is much code.
__device__ __noinline__ void give_up(int wait) {
  printf("rawnn: block %d waited in vain for numbers %d\n", static_cast<int>(blockIdx.x), wait);
  __trap();
}

// Called between two polls. Gives up after about a second.
__device__ __forceinline__ void poll_again(int& tries, int wait) {
  if (++tries >= 2000000) give_up(wait);
}

}  // namespace ptx
