// The warp-wide operations of rawnn/ptx/narrow_mma.cuh on the host, after their definition in the PTX
// ISA. Copies are done at once, so that a wait that is missing goes unseen here.
#pragma once
#include "cuda_host.h"

#define NARROW_HOST_COLLECTIVES
#include "types.cuh"

#ifndef __align__
#define __align__(bytes) __attribute__((aligned(bytes)))
#endif

namespace narrow_host {

alignas(16) inline unsigned char shared[256 * 1024];

// What every lane of the warp gave, as long as no lane has come to the exchange after the next.
template <typename V>
const std::uint64_t* all(V value) {
  static_assert(sizeof(V) == sizeof(std::uint64_t));
  cuda_host::Warp& warp = *cuda_host::self->warp;
  std::uint64_t* const slots = warp.slots[warp.barrier.generation & 1u];
  std::memcpy(&slots[cuda_host::self->lane], &value, sizeof value);
  cuda_host::warp_wait(0xffffffffu);
  return slots;
}

}  // namespace narrow_host

inline unsigned char* dynamic_shared() { return narrow_host::shared; }

inline void __syncwarp() { narrow_host::all(std::uint64_t{0}); }
inline int max(int a, int b) { return a > b ? a : b; }

// Four bytes of the eight in `low` and `high`, each chosen by a digit of `selector`.
inline unsigned int __byte_perm(unsigned int low, unsigned int high, unsigned int selector) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  unsigned int result = 0;
  for (unsigned int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned int>(both >> 8 * (selector >> 4 * i & 7u) & 255u) << 8 * i;
  }
  return result;
}

template <bool TRANSPOSED>
void load_matrices(unsigned int (&words)[4], const void* row) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) cuda_host::fail("ldmatrix: a row is unaligned");
  const std::uint64_t* const rows = narrow_host::all(row);
  const int g = cuda_host::self->lane / 4;
  const int t = cuda_host::self->lane % 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto element = [&](int r, int c) -> unsigned int {
      return reinterpret_cast<const unsigned short*>(rows[8 * matrix + r])[c];
    };
    words[matrix] = TRANSPOSED ? element(2 * t, g) | element(2 * t + 1, g) << 16
                               : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  }
  __syncwarp();
}

template <typename T>
void multiply(float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
  const int g = cuda_host::self->lane / 4;
  const int t = cuda_host::self->lane % 4;
  float left[2][16], right[2][16];  // rows g and g + 8 of A, columns 2t and 2t + 1 of B
  const auto put = [](float* to, std::uint64_t both, bool upper) {
    const float2 pair = unpack_pair<T>(static_cast<unsigned int>(upper ? both >> 32 : both));
    to[0] = pair.x;
    to[1] = pair.y;
  };
  for (int half = 0; half < 2; ++half) {
    const std::uint64_t* const words =
        narrow_host::all(std::uint64_t{a[2 * half + 1]} << 32 | a[2 * half]);
    for (int i = 0; i < 4; ++i) {
      put(left[0] + 8 * half + 2 * i, words[4 * g + i], false);
      put(left[1] + 8 * half + 2 * i, words[4 * g + i], true);
    }
  }
  const std::uint64_t* const words = narrow_host::all(std::uint64_t{b1} << 32 | b0);
  for (int column = 0; column < 2; ++column) {
    for (int i = 0; i < 4; ++i) {
      put(right[column] + 2 * i, words[4 * (2 * t + column) + i], false);
      put(right[column] + 8 + 2 * i, words[4 * (2 * t + column) + i], true);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) c[i] += left[i / 2][k] * right[i % 2][k];
  }
}

inline void copy_async(void* to, const void* from, int bytes) {
  if (((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) & 15u) != 0) {
    cuda_host::fail("cp.async: an address is unaligned");
  }
  std::memset(to, 0, 16);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
inline void close_copies() {}
inline void await_copies(int) {}

// Bulk copies are for GPUs that have them; the host takes the other path.
constexpr bool kHasBulk = false;
inline void make_barrier(unsigned long long*) {}
inline void announce(unsigned long long*, int) {}
inline void copy_bulk(void*, const void*, int, unsigned long long*) {}
inline void await_bulk(unsigned long long*, int) {}
inline void before_bulk() {}
