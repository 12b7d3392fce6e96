// Numbers that blocks of a grid hand to each other through global memory (the L2 cache) without a
// barrier: words of 16 bytes, three floats and a stamp. A word is stored and loaded in one piece
// (128-bit relaxed accesses, single-copy atomic), so whoever finds the stamp that it waits for has the
// floats that belong to it; no fence, counter or acquire is needed (as the "LL" protocol of NCCL does
// with 8 bytes). The stamp must not be one that the word had before: a count of steps is.
#pragma once
#include "types.cuh"

#ifdef RAWNN_TWIN
#include RAWNN_TWIN
#else

extern "C" __device__ int printf(const char*, ...);

namespace ptx {

// The same number, of which nothing is computed ahead of here: what a loop would keep in registers
// from its beginning on, where it has none to spare, is made where it is used.
__device__ __forceinline__ int made_here(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

struct alignas(16) Stamped {
  float x, y, z;
  unsigned int stamp;
};

__device__ __forceinline__ void store_stamped(Stamped* to, float x, float y, float z,
                                              unsigned int stamp) {
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 word;\n"
      "mov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\nmov.b128 word, {low, high};\n"
      "st.relaxed.gpu.global.b128 [%0], word;\n}" ::"l"(to),
      "f"(x), "f"(y), "f"(z), "r"(stamp)
      : "memory");
}

__device__ __forceinline__ Stamped load_stamped(const Stamped* from) {
  Stamped found;
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 word;\n"
      "ld.relaxed.gpu.global.b128 word, [%4];\n"
      "mov.b128 {low, high}, word;\nmov.b64 {%0, %1}, low;\nmov.b64 {%2, %3}, high;\n}"
      : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=r"(found.stamp)
      : "l"(from)
      : "memory");
  return found;
}

// Returns once all `words`, which lie at from(0 .. WORDS - 1), have the stamp. All are asked for at
// once. Traps after about a second without, and says which of the program's waits (`what`) it was.
template <int WORDS, typename F>
__device__ __forceinline__ void await_stamped(Stamped (&words)[WORDS], F from, unsigned int stamp,
                                              int what) {
#pragma unroll 1
  for (int tries = 0;; ++tries) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] = load_stamped(from(i));
#pragma unroll
    for (int i = 0; i < WORDS; ++i) all = all && words[i].stamp == stamp;
    if (all) return;
    if (tries == 1000000) {
      printf("rawnn: block %d waited in vain for words %d of stamp %u\n",
             static_cast<int>(blockIdx.x), what, stamp);
      __trap();
    }
  }
}

}  // namespace ptx

#endif
