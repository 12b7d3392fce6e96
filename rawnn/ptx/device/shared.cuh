// Shared memory: addresses, and accesses by the 32-bit addresses that the other primitives use.
//
// The primitives in this folder are the only inline PTX of rawnn. Each header names the instruction
// and says what it orders. Without a GPU they run on the CPU emulator (tests/ptx/emulator), which
// compiles their C++, interprets their instructions and defines RAWNN_TWIN.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// The launch's dynamic shared memory, which begins at a multiple of ALIGN bytes.
template <typename T = unsigned char, int ALIGN = 16>
__device__ __forceinline__ T* dynamic_shared() {
  if constexpr (ALIGN > 16) {
    extern __shared__ __align__(ALIGN) unsigned char widely_aligned_shared[];
    return reinterpret_cast<T*>(widely_aligned_shared);
  } else {
    extern __shared__ __align__(16) unsigned char aligned_shared[];
    return reinterpret_cast<T*>(aligned_shared);
  }
}

// The address of an object in shared memory, as the primitives expect it (cvta.to.shared).
__device__ __forceinline__ unsigned int shared_address(const void* pointer) {
  return static_cast<unsigned int>(__cvta_generic_to_shared(pointer));
}

// ld.shared of 1, 2 or 4 words at a multiple of their size.
template <int WORDS>
__device__ __forceinline__ void load_shared(unsigned int (&words)[WORDS], unsigned int from) {
  static_assert(WORDS == 1 || WORDS == 2 || WORDS == 4, "4, 8 or 16 bytes");
  if constexpr (WORDS == 4) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
  } else if constexpr (WORDS == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(words[0]) : "r"(from) : "memory");
  }
}

__device__ __forceinline__ unsigned int load_shared(unsigned int from) {
  unsigned int word[1];
  load_shared(word, from);
  return word[0];
}

// st.shared of 1, 2 or 4 words at a multiple of their size.
template <int WORDS>
__device__ __forceinline__ void store_shared(unsigned int to, const unsigned int (&words)[WORDS]) {
  static_assert(WORDS == 1 || WORDS == 2 || WORDS == 4, "4, 8 or 16 bytes");
  if constexpr (WORDS == 4) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (WORDS == 2) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(words[0]) : "memory");
  }
}

// Declares that threads may write to an object in shared memory concurrently, because nobody reads it.
// It is no instruction; the CPU emulator, which checks that writes are ordered, relies on it.
template <typename T>
__device__ __forceinline__ void nobody_reads([[maybe_unused]] const T& object) {
#ifdef RAWNN_TWIN
  twin::nobody_reads(&object, sizeof object);
#endif
}

}  // namespace ptx
