// Values between layers in shared memory: as float32, rounded to tf32, or in 16 bits as bfloat16 or float16, as
// SHAPE::kPrecision says; and the epilogue that stores gradients of them.
#pragma once
#include "elementwise/activations.cuh"
#include "persistent/block.cuh"

// The bits of a bfloat16 or float16.
using Half = unsigned short;

template <typename SHAPE>
__device__ __forceinline__ constexpr bool in_halves() {
  return SHAPE::kPrecision == kBfloat16 || SHAPE::kPrecision == kFloat16;
}

template <typename SHAPE>
__device__ __forceinline__ unsigned int pack_halves(float low, float high) {
  if constexpr (SHAPE::kPrecision == kFloat16) return ptx::pack_f16(low, high);
  return ptx::pack_bf16(low, high);
}

// A value between layers that is rounded to tf32 as it is stored, once for all GEMMs that read it.
struct Tf32 {
  float value;
};

// Stores and loads of one, two or four neighbours, as float32, rounded to tf32 or in 16 bits.
template <typename SHAPE>
__device__ __forceinline__ void store_one(float* to, float value) {
  *to = value;
}

template <typename SHAPE>
__device__ __forceinline__ void store_one(Tf32* to, float value) {
  to->value = ptx::round_tf32(value);
}

template <typename SHAPE>
__device__ __forceinline__ void store_one(Half* to, float value) {
  *to = static_cast<Half>(pack_halves<SHAPE>(value, 0.0f));
}

template <typename SHAPE>
__device__ __forceinline__ void store_two(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = make_float2(first, second);
}

template <typename SHAPE>
__device__ __forceinline__ void store_two(Tf32* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = make_float2(ptx::round_tf32(first), ptx::round_tf32(second));
}

template <typename SHAPE>
__device__ __forceinline__ void store_two(Half* to, float first, float second) {
  *reinterpret_cast<unsigned int*>(to) = pack_halves<SHAPE>(first, second);
}

template <typename SHAPE>
__device__ __forceinline__ void store_four(float* to, const float4& v) {
  *reinterpret_cast<float4*>(to) = v;
}

template <typename SHAPE>
__device__ __forceinline__ void store_four(Tf32* to, const float4& v) {
  *reinterpret_cast<float4*>(to) =
      make_float4(ptx::round_tf32(v.x), ptx::round_tf32(v.y), ptx::round_tf32(v.z), ptx::round_tf32(v.w));
}

template <typename SHAPE>
__device__ __forceinline__ void store_four(Half* to, const float4& v) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(pack_halves<SHAPE>(v.x, v.y), pack_halves<SHAPE>(v.z, v.w));
}

template <typename SHAPE>
__device__ __forceinline__ float2 load_two(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}

template <typename SHAPE>
__device__ __forceinline__ float2 load_two(const Tf32* from) {
  return *reinterpret_cast<const float2*>(from);
}

template <typename SHAPE>
__device__ __forceinline__ float2 unpack_halves(unsigned int both) {
  if constexpr (SHAPE::kPrecision == kFloat16) {
    return make_float2(ptx::from_f16(static_cast<Half>(both)),
                       ptx::from_f16(static_cast<Half>(both >> 16)));
  }
  return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}

template <typename SHAPE>
__device__ __forceinline__ float2 load_two(const Half* from) {
  return unpack_halves<SHAPE>(*reinterpret_cast<const unsigned int*>(from));
}

// Two values that the forward pass saved, as they lie in memory.
template <typename T>
struct SavedPair {
  using Type = float2;
};
template <>
struct SavedPair<Half> {
  using Type = unsigned int;
};

// Stores two gradients times the slopes of ACTIVATION at two saved values.
template <typename SHAPE, typename ACTIVATION, typename T>
__device__ __forceinline__ void store_gradients(T* to, float first, float second, float2 saved) {
  store_two<SHAPE>(to, ACTIVATION::backward(first, saved.x), ACTIVATION::backward(second, saved.y));
}

// The slopes of Relu mask pairs of 16 bits (sm_90).
template <typename SHAPE, typename ACTIVATION>
__device__ __forceinline__ void store_gradients(Half* to, float first, float second, unsigned int saved) {
#if defined(RAWNN_TWIN) || RAWNN_ARCH >= 900
  if constexpr (kSame<ACTIVATION, Relu>) {
    const unsigned int positive = SHAPE::kPrecision == kFloat16 ? ptx::greater_f16(saved, 0u)
                                                                : ptx::greater_bf16(saved, 0u);
    *reinterpret_cast<unsigned int*>(to) = pack_halves<SHAPE>(first, second) & positive;
    return;
  }
#endif
  const float2 both = unpack_halves<SHAPE>(saved);
  store_two<SHAPE>(to, ACTIVATION::backward(first, both.x), ACTIVATION::backward(second, both.y));
}

constexpr int kAllRows = -1;

// An epilogue (epilogue.cuh) that multiplies gradients by slopes, for rows below `count`, which is 0 in a block
// that has none, or kAllRows of its tiles. It loads the saved values of all tiles of a task ahead of its first
// store: the compiler moves no load across a store, and each would wait for the one before.
template <typename SHAPE, typename ACTIVATION, typename T>
struct Gradients {
  using Saved = typename SavedPair<T>::Type;
  struct Early {
    Saved upper, lower;
  };
  const T* saved;
  T* to;
  int count;

  static __device__ __forceinline__ int place(int mt, int nt) {
    return (mt * 16 + lane_index() / 4) * SHAPE::kPitch + nt * 8 + lane_index() % 4 * 2;
  }
  __device__ __forceinline__ bool has(int row) const { return count == kAllRows || row < count; }
  __device__ __forceinline__ Early early(int mt, int nt) const {
    const int row = mt * 16 + lane_index() / 4;
    const T* const first = saved + place(mt, nt);
    Early found = {};
    if (has(row)) found.upper = *reinterpret_cast<const Saved*>(first);
    if (has(row + 8)) found.lower = *reinterpret_cast<const Saved*>(first + 8 * SHAPE::kPitch);
    return found;
  }
  __device__ __forceinline__ void store(int, int mt, int nt, const float (&sum)[4], const Early& kept) const {
    const int row = mt * 16 + lane_index() / 4;
    T* const first = to + place(mt, nt);
    if (has(row)) store_gradients<SHAPE, ACTIVATION>(first, sum[0], sum[1], kept.upper);
    if (has(row + 8)) {
      store_gradients<SHAPE, ACTIVATION>(first + 8 * SHAPE::kPitch, sum[2], sum[3], kept.lower);
    }
  }
  __device__ __forceinline__ void sums(int, float, float, bool) const {}
};
