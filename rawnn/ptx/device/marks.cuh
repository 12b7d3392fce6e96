// Numbers in global memory that say by themselves whether they have come: sixteen bytes stored and
// loaded at once, with a mark in the lowest bit of the last of four floats, or eight, with one in the
// lowest bit of the last of two words. Neither a fence nor a
// flag stands between the stores and whoever reads them: one who finds the mark has the rest.
//
// They order nothing else. What a thread has loaded ahead of such a store was loaded, for whoever
// finds its mark: a store is not made before it is known that it will be.
#pragma once
#include "primitives/types.cuh"

extern "C" __device__ int printf(const char*, ...);

namespace ptx {

// Four floats at once, at a multiple of 16 bytes, the lowest bit of the last of them replaced by `mark`,
// 0 or 1 (st.relaxed.gpu.b128).
__device__ __forceinline__ void store_marked(float4* to, float4 v, unsigned int mark) {
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 all;\n"
      "mov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\nmov.b128 all, {low, high};\n"
      "st.relaxed.gpu.global.b128 [%0], all;\n}" ::"l"(to), "r"(__float_as_uint(v.x)),
      "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)),
      "r"((__float_as_uint(v.w) & ~1u) | mark)
      : "memory");
}

// What lies there, as one store left it, with its mark (ld.relaxed.gpu.b128).
__device__ __forceinline__ float4 load_marked(const float4* from) {
  unsigned int x, y, z, w;
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 all;\nld.relaxed.gpu.global.b128 all, [%4];\n"
      "mov.b128 {low, high}, all;\nmov.b64 {%0, %1}, low;\nmov.b64 {%2, %3}, high;\n}"
      : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
      : "l"(from)
      : "memory");
  return make_float4(__uint_as_float(x), __uint_as_float(y), __uint_as_float(z), __uint_as_float(w));
}

// The same of two words (st.relaxed.gpu.b64, ld.relaxed.gpu.b64).
__device__ __forceinline__ void store_marked(uint2* to, uint2 v, unsigned int mark) {
  asm volatile(
      "{\n.reg .b64 all;\nmov.b64 all, {%1, %2};\nst.relaxed.gpu.global.b64 [%0], all;\n}" ::"l"(to),
      "r"(v.x), "r"((v.y & ~1u) | mark)
      : "memory");
}

__device__ __forceinline__ uint2 load_marked(const uint2* from) {
  uint2 v;
  asm volatile(
      "{\n.reg .b64 all;\nld.relaxed.gpu.global.b64 all, [%2];\nmov.b64 {%0, %1}, all;\n}"
      : "=r"(v.x), "=r"(v.y)
      : "l"(from)
      : "memory");
  return v;
}

// Whether what was loaded from there is not what is waited for: sets the lowest bit of `lacking` if so, so
// that what several loads brought is looked at together.
// (One instruction, lacking | (bits ^ mark), that stays behind the loads ahead of it: a compiler that
// sees through it looks at the first numbers ahead of asking for the last, which is one more trip.)
__device__ __forceinline__ void look_for(unsigned int& lacking, const float4* /*from*/,
                                         const float4& v, unsigned int mark) {
  asm volatile("lop3.b32 %0, %0, %1, %2, 0xf6;" : "+r"(lacking) : "r"(__float_as_uint(v.w)), "r"(mark));
}

__device__ __forceinline__ void look_for(unsigned int& lacking, const uint2* /*from*/, const uint2& v,
                                         unsigned int mark) {
  asm volatile("lop3.b32 %0, %0, %1, %2, 0xf6;" : "+r"(lacking) : "r"(v.y), "r"(mark));
}

// Between two looks at what has not come yet. Traps after about a second of them, and says which of
// the program's waits (`what`) it was.
__device__ __forceinline__ void look_again(int& tries, int what) {
  if (++tries < 2000000) return;
  printf("rawnn: block %d waited in vain for numbers %d\n", static_cast<int>(blockIdx.x), what);
  __trap();
}

}  // namespace ptx
