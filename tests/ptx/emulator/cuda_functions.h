// CUDA C's built-in functions, as far as kernels use them.
#pragma once

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned int min(unsigned int a, unsigned int b) { return a < b ? a : b; }
inline unsigned int max(unsigned int a, unsigned int b) { return a > b ? a : b; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned int bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>(std::uint64_t{a} * b >> 32);
}
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
  return {x, y, z, w};
}

inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float cospif(float x) { return static_cast<float>(std::cos(3.14159265358979323846 * x)); }
inline int __float_as_int(float value) { return __builtin_bit_cast(int, value); }
inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
inline unsigned int __float_as_uint(float value) { return __builtin_bit_cast(unsigned int, value); }
inline float __uint_as_float(unsigned int bits) { return __builtin_bit_cast(float, bits); }

// Four bytes of the eight in `low` and `high`, each chosen by a digit of `selector`.
inline unsigned int __byte_perm(unsigned int low, unsigned int high, unsigned int selector) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  unsigned int result = 0;
  for (unsigned int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned int>(both >> 8 * (selector >> 4 * i & 7u) & 255u) << 8 * i;
  }
  return result;
}

inline std::size_t __cvta_generic_to_shared(const void* pointer) {
  return twin::shared_address(pointer);
}

inline void __syncthreads() { twin::sync_block(); }
inline int __syncthreads_or(int predicate) { return twin::sync_block_or(predicate != 0) ? 1 : 0; }
inline void __syncwarp(unsigned int mask = 0xffffffffu) { twin::sync_warp(mask); }
void __threadfence();
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned int) {}
[[noreturn]] inline void __trap() { twin::fail("__trap()"); }

template <typename V>
V emulated_shuffle(twin::Shuffle kind, unsigned int mask, V value, int argument, int width) {
  static_assert(sizeof(V) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(V));
  bits = twin::shuffle(kind, mask, bits, argument, width);
  __builtin_memcpy(&value, &bits, sizeof(V));
  return value;
}
template <typename V>
V __shfl_xor_sync(unsigned int mask, V value, int lanes, int width = 32) {
  return emulated_shuffle(twin::Shuffle::kXor, mask, value, lanes, width);
}
template <typename V>
V __shfl_down_sync(unsigned int mask, V value, unsigned int delta, int width = 32) {
  return emulated_shuffle(twin::Shuffle::kDown, mask, value, static_cast<int>(delta), width);
}
template <typename V>
V __shfl_up_sync(unsigned int mask, V value, unsigned int delta, int width = 32) {
  return emulated_shuffle(twin::Shuffle::kUp, mask, value, static_cast<int>(delta), width);
}
template <typename V>
V __shfl_sync(unsigned int mask, V value, int lane, int width = 32) {
  return emulated_shuffle(twin::Shuffle::kIndex, mask, value, lane, width);
}
inline unsigned int __reduce_max_sync(unsigned int mask, unsigned int value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const unsigned int other = __shfl_xor_sync(mask, value, lanes);
    value = other > value ? other : value;
  }
  return value;
}
inline unsigned int __ballot_sync(unsigned int mask, bool predicate) {
  return twin::ballot(mask, predicate);
}
inline int __any_sync(unsigned int mask, bool predicate) {
  return twin::ballot(mask, predicate) != 0;
}
inline int __all_sync(unsigned int mask, bool predicate) {
  return twin::ballot(mask, !predicate) == 0;
}

// Loads and stores that choose a cache.
template <typename V>
V __ldg(const V* from) { return *from; }
template <typename V>
V __ldcg(const V* from) { return *from; }
template <typename V>
V __ldcs(const V* from) { return *from; }
template <typename V>
void __stcg(V* to, V value) { *to = value; }
template <typename V>
void __stcs(V* to, V value) { *to = value; }

inline int atomicExch(int* to, int value) {
  return static_cast<int>(twin::atomic(to, 0, static_cast<unsigned int>(value), 0));
}
inline int atomicAdd(int* to, int value) {
  return static_cast<int>(twin::atomic(to, 1, static_cast<unsigned int>(value), 0));
}
inline unsigned int atomicAdd(unsigned int* to, unsigned int value) {
  return twin::atomic(to, 1, value, 0);
}
inline float atomicAdd(float* to, float value) {
  return __uint_as_float(twin::atomic(to, 2, __float_as_uint(value), 0));
}
inline int atomicCAS(int* to, int compare, int value) {
  return static_cast<int>(twin::atomic(to, 3, static_cast<unsigned int>(value),
                                       static_cast<unsigned int>(compare)));
}

// The conditional node's handle is, on the host, the address of the flag it sets.
extern "C" void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
