// Enough of CUDA C for the kernels of rawnn/ptx to run on the host, for tests only.
//
// Blocks run one after another. Within a block each CUDA thread is a fiber (ucontext) or, with
// CUDA_HOST_THREADS, a host thread, so that ThreadSanitizer sees the block's races. Barriers and
// warp shuffles stop a thread until all that take part have come. What CUDA leaves undefined is made
// visible: a shuffle from a lane outside the mask gives all-ones bits (NaN, -1), a mask that names
// lanes which do not exist aborts, and so does a block in which no thread can go on.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef CUDA_HOST_THREADS
#include <mutex>
#include <thread>
#else
#include <sys/mman.h>
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__) && !defined(CUDA_HOST_THREADS)
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one at a time

struct dim3 {
  unsigned int x, y, z;
};
struct uchar4 {
  unsigned char x, y, z, w;
} __attribute__((aligned(4)));
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

namespace cuda_host {

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s\n", what);
  std::fflush(stderr);
  std::abort();
}

struct Barrier {
  int expected = 0;
  int arrived = 0;
  std::atomic<unsigned int> generation{0};
  void release_if_complete() {
    if (expected > 0 && arrived == expected) {
      arrived = 0;
      ++generation;
      generation.notify_all();
    }
  }
};

struct Warp {
  Barrier barrier;
  unsigned int exists = 0;   // lanes the block has
  unsigned int waiting = 0;  // the mask of those now at the barrier
  // Two sets, by turns: a lane may be at the next exchange while another still reads this one.
  std::uint64_t slots[2][32] = {};
};

struct Thread {
  dim3 index{};
  int lane = 0;
  Warp* warp = nullptr;
  bool done = false;
#ifndef CUDA_HOST_THREADS
  ucontext_t context{};
  char* stack = nullptr;
  void* fake_stack = nullptr;
#endif
};

inline dim3 grid_dim, block_dim, block_index;
inline Barrier block_barrier;

#ifdef CUDA_HOST_THREADS
inline thread_local Thread* self = nullptr;
inline std::mutex mutex;

inline void wait_at(Barrier& barrier, std::unique_lock<std::mutex>& lock) {
  const unsigned int generation = barrier.generation;
  ++barrier.arrived;
  barrier.release_if_complete();
  lock.unlock();
  while (barrier.generation == generation) barrier.generation.wait(generation);
}
#else
inline Thread* self = nullptr;
inline ucontext_t scheduler;
inline void* scheduler_fake_stack = nullptr;
inline const void* scheduler_stack = nullptr;
inline std::size_t scheduler_stack_size = 0;
inline bool progressed = false;
constexpr std::size_t kStack = 128 * 1024;

#ifdef __SANITIZE_ADDRESS__
inline void before_switch(void** save, const void* stack, std::size_t size) {
  __sanitizer_start_switch_fiber(save, stack, size);
}
inline void after_switch(void* saved, const void** stack, std::size_t* size) {
  __sanitizer_finish_switch_fiber(saved, stack, size);
}
#else
inline void before_switch(void**, const void*, std::size_t) {}
inline void after_switch(void*, const void**, std::size_t*) {}
#endif

inline void yield() {
  Thread* thread = self;
  before_switch(&thread->fake_stack, scheduler_stack, scheduler_stack_size);
  swapcontext(&thread->context, &scheduler);
  after_switch(thread->fake_stack, &scheduler_stack, &scheduler_stack_size);
}

inline void wait_at(Barrier& barrier) {
  const unsigned int generation = barrier.generation;
  ++barrier.arrived;
  barrier.release_if_complete();
  while (barrier.generation == generation) yield();
  progressed = true;
}
#endif

inline void block_wait() {
#ifdef CUDA_HOST_THREADS
  std::unique_lock<std::mutex> lock(mutex);
  wait_at(block_barrier, lock);
#else
  wait_at(block_barrier);
#endif
}

inline void warp_wait(unsigned int mask) {
  Warp& warp = *self->warp;
#ifdef CUDA_HOST_THREADS
  std::unique_lock<std::mutex> lock(mutex);
#endif
  if ((mask & ~warp.exists) != 0) fail("a warp mask names lanes that the block does not have");
  if ((mask >> self->lane & 1u) == 0) fail("a lane is missing from its own warp mask");
  if (warp.barrier.arrived > 0 && warp.waiting != mask) fail("lanes of a warp pass other masks");
  warp.waiting = mask;
  warp.barrier.expected = __builtin_popcount(mask);
#ifdef CUDA_HOST_THREADS
  wait_at(warp.barrier, lock);
#else
  wait_at(warp.barrier);
#endif
}

template <typename V>
V exchange(unsigned int mask, V value, int source) {
  static_assert(sizeof(V) <= sizeof(std::uint64_t));
  Warp& warp = *self->warp;
  std::uint64_t* const slots = warp.slots[warp.barrier.generation & 1u];
  std::memcpy(&slots[self->lane], &value, sizeof(V));
  warp_wait(mask);
  V result;
  if (source >= 0 && source < 32 && (mask >> source & 1u) != 0) {
    std::memcpy(&result, &slots[source], sizeof(V));
  } else {
    std::memset(&result, 0xff, sizeof(V));
  }
  return result;
}

inline void leave_block() {
#ifdef CUDA_HOST_THREADS
  std::unique_lock<std::mutex> lock(mutex);
#endif
  --block_barrier.expected;  // __syncthreads waits for threads that still run
  block_barrier.release_if_complete();
}

template <typename Call>
struct Block {
  Call& call;
  std::vector<Thread>& threads;
  bool reverse;

#ifdef CUDA_HOST_THREADS
  void run() {
    std::vector<std::thread> running;
    for (Thread& thread : threads) {
      running.emplace_back([this, &thread] {
        self = &thread;
        call();
        leave_block();
      });
    }
    for (std::thread& thread : running) thread.join();
  }
#else
  static void enter(unsigned int high, unsigned int low) {
    after_switch(nullptr, &scheduler_stack, &scheduler_stack_size);
    const auto address = static_cast<std::uintptr_t>(high) << 32 | low;
    reinterpret_cast<Block*>(address)->call();
    leave_block();
    self->done = true;
    progressed = true;
    before_switch(nullptr, scheduler_stack, scheduler_stack_size);
    swapcontext(&self->context, &scheduler);
  }

  void run() {
    const auto address = reinterpret_cast<std::uintptr_t>(this);
    for (Thread& thread : threads) {
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack;
      thread.context.uc_stack.ss_size = kStack;
      thread.context.uc_link = nullptr;
      thread.done = false;
      makecontext(&thread.context, reinterpret_cast<void (*)()>(&Block::enter), 2,
                  static_cast<unsigned int>(address >> 32), static_cast<unsigned int>(address));
    }
    const std::size_t count = threads.size();
    for (std::size_t left = count; left > 0;) {
      progressed = false;
      for (std::size_t i = 0; i < count; ++i) {
        self = &threads[reverse ? count - 1 - i : i];
        if (self->done) continue;
        before_switch(&scheduler_fake_stack, self->stack, kStack);
        swapcontext(&scheduler, &self->context);
        after_switch(scheduler_fake_stack, nullptr, nullptr);
        if (self->done) --left;
      }
      if (!progressed) fail("no thread of the block can go on (a barrier not reached by all)");
    }
  }
#endif
};

// Runs kernel over a grid; arguments as cuLaunchKernel takes them, one pointer to each value.
// `reverse` runs the threads of a block from the last to the first between barriers.
template <typename... P>
void launch(void (*kernel)(P...), const int* shape, int reverse, void** arguments) {
  grid_dim = {unsigned(shape[0]), unsigned(shape[1]), unsigned(shape[2])};
  block_dim = {unsigned(shape[3]), unsigned(shape[4]), unsigned(shape[5])};
  const unsigned int count = block_dim.x * block_dim.y * block_dim.z;
  auto call = [&] {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      kernel(*static_cast<std::remove_reference_t<P>*>(arguments[I])...);
    }(std::index_sequence_for<P...>{});
  };
  std::vector<Thread> threads(count);
#ifndef CUDA_HOST_THREADS
  void* const stacks = mmap(nullptr, count * kStack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) fail("no memory for the threads' stacks");
#endif
  for (block_index.z = 0; block_index.z < grid_dim.z; ++block_index.z) {
    for (block_index.y = 0; block_index.y < grid_dim.y; ++block_index.y) {
      for (block_index.x = 0; block_index.x < grid_dim.x; ++block_index.x) {
        std::vector<Warp> warps((count + 31) / 32);
        block_barrier.expected = int(count);
        block_barrier.arrived = 0;
        for (unsigned int i = 0; i < count; ++i) {
          threads[i].index = {i % block_dim.x, i / block_dim.x % block_dim.y,
                              i / block_dim.x / block_dim.y};
          threads[i].lane = int(i % 32);
          threads[i].warp = &warps[i / 32];
          threads[i].warp->exists |= 1u << (i % 32);
#ifndef CUDA_HOST_THREADS
          threads[i].stack = static_cast<char*>(stacks) + i * kStack;
#endif
        }
        Block<decltype(call)>{call, threads, reverse != 0}.run();
      }
    }
  }
#ifndef CUDA_HOST_THREADS
  munmap(stacks, count * kStack);
#endif
}

}  // namespace cuda_host

#define threadIdx (cuda_host::self->index)
#define blockIdx cuda_host::block_index
#define blockDim cuda_host::block_dim
#define gridDim cuda_host::grid_dim

inline int min(int a, int b) { return a < b ? a : b; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
  return {x, y, z, w};
}

inline float __fdividef(float a, float b) { return a / b; }
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned int bits) { return __int_as_float(static_cast<int>(bits)); }
inline unsigned int __float_as_uint(float value) {
  unsigned int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline int atomicExch(int* address, int value) {
  return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);
}
inline int atomicAdd(int* address, int value) {
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}
inline void __threadfence() {}  // blocks run one at a time

inline void __syncthreads() { cuda_host::block_wait(); }

template <typename V>
V __shfl_xor_sync(unsigned int mask, V value, int lane_mask) {
  return cuda_host::exchange(mask, value, cuda_host::self->lane ^ lane_mask);
}

template <typename V>
V __shfl_down_sync(unsigned int mask, V value, unsigned int delta) {
  const int source = cuda_host::self->lane + int(delta);
  return cuda_host::exchange(mask, value, source < 32 ? source : cuda_host::self->lane);
}

inline unsigned int __ballot_sync(unsigned int mask, bool predicate) {
  cuda_host::Warp& warp = *cuda_host::self->warp;
  std::uint64_t* const slots = warp.slots[warp.barrier.generation & 1u];
  slots[cuda_host::self->lane] = predicate ? 1 : 0;
  cuda_host::warp_wait(mask);
  unsigned int result = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) != 0 && slots[lane] == 1) result |= 1u << lane;
  }
  return result;
}

// The conditional node's handle is, on the host, the address of the flag it sets.
extern "C" inline void cudaGraphSetConditional(unsigned long long handle, unsigned int value) {
  *reinterpret_cast<unsigned int*>(handle) = value;
}

// Makes one kernel callable as symbol(shape[6], reverse, arguments).
#define CUDA_HOST_EXPORT(symbol, ...)                                                    \
  extern "C" void symbol(const int* shape, int reverse, void** arguments) {              \
    cuda_host::launch(&__VA_ARGS__, shape, reverse, arguments);                          \
  }
