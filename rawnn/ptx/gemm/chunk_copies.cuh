// Copies of 16 bytes from global to shared memory by one thread, asynchronous from sm_80 on.
#pragma once
#include "device/copies.cuh"
#include "device/shared.cuh"
#include "primitives/types.cuh"

constexpr int kChunkBytes = 16;  // bytes of one copy

__device__ __forceinline__ void commit_copies() {
#if RAWNN_ARCH >= 800
  ptx::commit_copies();
#endif
}

// Waits until at most `PENDING` groups of this thread's copies are in flight.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
#if RAWNN_ARCH >= 800
  ptx::wait_for_copies<PENDING>();
#endif
}

// The bits of an element in the lowest bits of a word.
template <typename T>
__device__ __forceinline__ unsigned int element_bits(const T* pointer) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const unsigned int*>(pointer);
  } else if constexpr (sizeof(T) == 2) {
    return *reinterpret_cast<const unsigned short*>(pointer);
  } else {
    return *reinterpret_cast<const unsigned char*>(pointer);
  }
}

// Copies a chunk of which `count` elements exist, one element at a time, for rows that are not aligned.
template <typename T>
__device__ __forceinline__ void copy_elements(unsigned int to, const T* from, int count) {
  constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
  unsigned int word[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    word[w] = 0u;
#pragma unroll
    for (int i = 0; i < kInWord; ++i) {
      const int element = w * kInWord + i;
      if (element < count) word[w] |= element_bits(from + element) << (i * 32 / kInWord % 32);
    }
  }
  ptx::store_shared(to, word);
}

// Copies a chunk that is aligned to 16 bytes, asynchronously from sm_80 on. STREAMED: nobody reads it
// again soon.
template <bool STREAMED>
__device__ __forceinline__ void copy_chunk(unsigned int to, const void* from) {
#if RAWNN_ARCH >= 800
  if constexpr (STREAMED) {
    ptx::copy_streamed(to, from, kChunkBytes);
  } else {
    ptx::copy_async(to, from);
  }
#else
  unsigned int words[4];
  load_words(words, from);
  ptx::store_shared(to, words);
#endif
}

// The same if only `count` elements exist: nothing else is read, and zeros fill the chunk.
template <bool STREAMED, typename T>
__device__ __forceinline__ void copy_part(unsigned int to, const T* from, int count) {
#if RAWNN_ARCH >= 800
  if constexpr (STREAMED) {
    ptx::copy_streamed(to, from, count * static_cast<int>(sizeof(T)));
  } else {
    ptx::copy_async(to, from, count * static_cast<int>(sizeof(T)));
  }
#else
  copy_elements(to, from, count);
#endif
}
