// Numbers that say themselves which message they belong to: a float lies beside a mark in 8 bytes
// of global memory, which are stored and read at once (a 64-bit access is single-copy atomic), so
// that whoever finds the mark has the number: one way through the L2 cache, with no fence and no
// flag. It orders nothing else. All blocks of which one waits for another must run at once.
// Source: the "LL" protocol of NCCL.
#pragma once
#include "types.cuh"

#ifdef RAWNN_TWIN
#include RAWNN_TWIN
#else

extern "C" __device__ int printf(const char*, ...);

namespace ptx {

__device__ __forceinline__ unsigned long long marked(float value, unsigned int mark) {
  return static_cast<unsigned long long>(mark) << 32 | __float_as_uint(value);
}

// Two neighbours, at a multiple of 16 bytes, or one.
__device__ __forceinline__ void store_marked(unsigned long long* to, float first, float second,
                                             unsigned int mark) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(marked(first, mark)),
               "l"(marked(second, mark))
               : "memory");
}

__device__ __forceinline__ void store_marked(unsigned long long* to, float value,
                                             unsigned int mark) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(marked(value, mark))
               : "memory");
}

__device__ __forceinline__ ulonglong2 load_marked(const unsigned long long* from) {
  ulonglong2 words;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(words.x), "=l"(words.y)
               : "l"(from)
               : "memory");
  return words;
}

__device__ __forceinline__ unsigned long long load_marked_one(const unsigned long long* from) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}

// After about a second of tries: says which of the program's waits (`what`) it was.
__device__ __noinline__ inline void waited_in_vain(int what, unsigned int mark) {
  printf("rawnn: block %d waited in vain for message %u, wait %d\n", static_cast<int>(blockIdx.x),
         mark, what);
  __trap();
}

__device__ __forceinline__ bool has_mark(unsigned long long word, unsigned int mark) {
  return static_cast<unsigned int>(word >> 32) == mark;
}

__device__ __forceinline__ float wait_for_marked_one(const unsigned long long* from,
                                                     unsigned int mark, int what = 0) {
#pragma unroll 1
  for (int tries = 0;; ++tries) {
    const unsigned long long word = load_marked_one(from);
    if (has_mark(word, mark)) return __uint_as_float(static_cast<unsigned int>(word));
    if (tries == 2000000) waited_in_vain(what, mark);
  }
}

// Returns COUNT pairs once all of them have the mark. Where some have not come it waits for one of
// them, and asks for all again: asking for all in vain would keep others' stores from the L2 cache.
template <int COUNT>
__device__ __forceinline__ void wait_for_marked(float2 (&values)[COUNT],
                                                const unsigned long long* const (&from)[COUNT],
                                                unsigned int mark, int what = 0) {
#pragma unroll 1
  for (;;) {
    ulonglong2 words[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) words[i] = load_marked(from[i]);
    const unsigned long long* missing = nullptr;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (!has_mark(words[i].x, mark)) missing = from[i];
      if (!has_mark(words[i].y, mark)) missing = from[i] + 1;
      values[i] = make_float2(__uint_as_float(static_cast<unsigned int>(words[i].x)),
                              __uint_as_float(static_cast<unsigned int>(words[i].y)));
    }
    if (missing == nullptr) return;
    wait_for_marked_one(missing, mark, what);
  }
}

}  // namespace ptx

#endif
