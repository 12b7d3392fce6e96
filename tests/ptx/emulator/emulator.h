// CUDA C in C++ for the host.
//
// A kernel built with -DRAWNN_TWIN and -fsanitize=thread runs on fibers (scheduler.cpp);
// every load and store of it comes to shadow.cpp, which checks bounds, alignment and order. Nothing
// of ThreadSanitizer is linked but its hooks' names. This header holds what kernels see; all of it
// calls into the library, which is not instrumented.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static  // the kernels' .bss, of which every block has a copy (scheduler.cpp)

struct dim3 {
  unsigned int x, y, z;
};
struct uchar4 {
  unsigned char x, y, z, w;
} __attribute__((aligned(4)));
struct int2 {
  int x, y;
} __attribute__((aligned(8)));
struct int4 {
  int x, y, z, w;
} __attribute__((aligned(16)));
struct uint2 {
  unsigned int x, y;
} __attribute__((aligned(8)));
struct uint4 {
  unsigned int x, y, z, w;
} __attribute__((aligned(16)));
struct float2 {
  float x, y;
} __attribute__((aligned(8)));
struct float4 {
  float x, y, z, w;
} __attribute__((aligned(16)));

namespace twin {

// Of the thread that runs: the same wherever a kernel asks, hence `const`.
__attribute__((const)) dim3 thread_index();
__attribute__((const)) dim3 block_index();
__attribute__((const)) dim3 block_dim();
__attribute__((const)) dim3 grid_dim();

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

enum class Shuffle { kXor, kDown, kUp, kIndex };
std::uint64_t shuffle(Shuffle kind, unsigned int mask, std::uint64_t value, int argument, int width);
unsigned int ballot(unsigned int mask, bool predicate);
void sync_warp(unsigned int mask);
void sync_block();
bool sync_block_or(bool predicate);
std::uint32_t atomic(void* address, int kind, std::uint32_t value, std::uint32_t compare);

unsigned char* dynamic_shared(int alignment);
template <typename T>
T* dynamic_shared(int alignment) {
  return reinterpret_cast<T*>(dynamic_shared(alignment));
}
void nobody_reads(const void* object, std::size_t bytes);
unsigned int shared_address(const void* pointer);

using Thunk = void (*)(void* kernel, void** arguments);
struct Region {
  const void* begin;
  unsigned long long bytes;
  const char* name;
  int early;  // may be touched ahead of wait_for_kernels()
};
struct Launch {
  unsigned int grid[3], block[3];
  unsigned int cluster;      // blocks, along x
  unsigned int shared;       // bytes of dynamic shared memory
  unsigned int cooperative;  // all blocks run at once
  unsigned int programmatic;
  unsigned int seed;
  unsigned int regions;
  const Region* region;
};
// What is wrong with the kernel, or null.
const char* launch(const Launch& how, Thunk thunk, void* kernel, void** arguments);

// A function that nobody looks into: it copies arguments from memory that is not the kernel's.
template <typename... P>
struct Call {
  template <typename V>
  __attribute__((no_sanitize("thread", "undefined"))) static V value(const void* from) {
    alignas(V) unsigned char bytes[sizeof(V)];
    std::memcpy(bytes, from, sizeof(V));
    return *reinterpret_cast<V*>(bytes);
  }
  __attribute__((no_sanitize("thread", "undefined"))) static void run(void* kernel,
                                                                      void** arguments) {
    [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((no_sanitize("thread"))) {
      reinterpret_cast<void (*)(P...)>(kernel)(
          value<std::remove_cv_t<std::remove_reference_t<P>>>(arguments[I])...);
    }(std::index_sequence_for<P...>{});
  }
};
template <typename... P>
const char* launch(const Launch& how, void (*kernel)(P...), void** arguments) {
  return launch(how, &Call<P...>::run, reinterpret_cast<void*>(kernel), arguments);
}

}  // namespace twin

#define EMULATOR_EXPORT(symbol, ...)                                                        \
  extern "C" const char* symbol(const twin::Launch* how, void** arguments) {            \
    return twin::launch(*how, &__VA_ARGS__, arguments);                                 \
  }

#define threadIdx (twin::thread_index())
#define blockIdx (twin::block_index())
#define blockDim (twin::block_dim())
#define gridDim (twin::grid_dim())

#include "cuda_functions.h"
#include "ptx.h"
