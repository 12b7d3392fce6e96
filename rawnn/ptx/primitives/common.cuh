// Helpers of several kernels: warp and block reductions in a fixed order, walking a matrix in vectors,
// and the numbers of the cross-entropy. All of it also compiles for the host (tests/ptx/emulator), so
// it uses warp shuffles and barriers only, and no instruction of one architecture.
#pragma once
#include "primitives/pdl.cuh"
#include "primitives/types.cuh"

constexpr unsigned int kFullWarp = 0xffffffffu;
constexpr float kSmallestNormal = 1.17549435e-38f;  // FLT_MIN

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fffffff); }

// The step of this launch: the epoch's cursor plus the launch's index among unrolled steps. threadIdx.y
// is 0 in the one-dimensional blocks that call this, which the compiler does not know. Without it the
// compiler moves the value, which is uniform over the warp, to a uniform register at once. That move
// waits for the load, before all loads that do not depend on the cursor.
__device__ __forceinline__ int current_step(const int* __restrict__ cursor, int offset) {
  return cursor[threadIdx.y] + offset;
}

// The cross-entropy of a row: -log of the probability p of its class, or from the logits where p is below
// FLT_MIN. `above` is how far the largest logit is above that of the class, `total` the sum of exp(logit -
// largest). A NaN stays a NaN.
__device__ __forceinline__ float cross_entropy_of(float p, float above, float total) {
  const bool tiny = p < kSmallestNormal;
  const float log = logf(tiny ? total : p);
  return tiny ? above + log : -log;
}

// The same for a thread that does not take the logarithm: p, or log p, which is negative, where p is below
// FLT_MIN.
__device__ __forceinline__ float probability_or_log(float p, float above, float total) {
  return p < kSmallestNormal ? -(above + logf(total)) : p;
}

// The cross-entropy of what probability_or_log gives.
__device__ __forceinline__ float negative_log(float p) { return p < 0.0f ? -p : -logf(p); }

// Whether a pointer and its pitch (in elements) allow accesses of `bytes` at multiples of `bytes`.
template <typename T>
__device__ __forceinline__ bool aligned(const T* pointer, int ld, int bytes) {
  const size_t address = reinterpret_cast<size_t>(pointer);
  const size_t pitch = static_cast<size_t>(ld) * sizeof(T);
  return ((address | pitch) & static_cast<size_t>(bytes - 1)) == 0;
}

// Elements of one 16-byte access, for the largest of the types that a kernel walks over.
template <typename... T>
__device__ constexpr int vector_length() {
  size_t largest = 1;
  ((largest = sizeof(T) > largest ? sizeof(T) : largest), ...);
  return static_cast<int>(16 / largest);
}

// Whether N elements at multiples of N can be loaded by load_values.
template <int N, typename T>
__device__ __forceinline__ bool vector_aligned(const T* pointer, int ld) {
  constexpr int bytes = N * static_cast<int>(sizeof(T));
  return aligned(pointer, ld, bytes < 16 ? bytes : 16);
}

// The first `count` of N elements, the others 0; `whole` allows one wide access to read all.
template <int N, typename T>
__device__ __forceinline__ void load_part(float (&values)[N], const T* from, bool whole,
                                          int count) {
  if (whole) {
    load_values<N>(values, from);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = i < count ? to_float(from[i]) : 0.0f;
  }
}

template <int N, typename T>
__device__ __forceinline__ void store_part(T* to, const float (&values)[N], bool whole, int count) {
  if (whole) {
    store_values<N>(to, values);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) to[i] = from_float<T>(values[i]);
    }
  }
}

// Walks a matrix in vectors of N columns over the whole grid (one dimension, any size). Calls
// body(row, column, whole, count) for each: `count` columns exist, and all of them if `whole`.
template <int N, typename Body>
__device__ __forceinline__ void for_vectors(int rows, int cols, bool wide, Body body) {
  const unsigned int each = static_cast<unsigned int>(cols + N - 1) / N;
  const unsigned int total = static_cast<unsigned int>(rows) * each;
  for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < total;
       i += gridDim.x * blockDim.x) {
    const unsigned int row = i / each;
    const int column = static_cast<int>(i - row * each) * N;
    const int count = min(N, cols - column);
    body(static_cast<int>(row), column, wide && count == N, count);
  }
}

template <typename T>
__device__ __forceinline__ T* at(T* pointer, int ld, int row, int column) {
  return pointer + static_cast<long long>(row) * ld + column;
}

// The largest number of a type that saturates, 0 for the others.
template <typename T>
struct Saturates {
  static constexpr float kLargest = 0.0f;
};
template <>
struct Saturates<float8_e4m3> {
  static constexpr float kLargest = 448.0f;
};
template <>
struct Saturates<float8_e5m2> {
  static constexpr float kLargest = 57344.0f;
};

// 0 if a T can hold the value, else NaN: the stored value would not be finite, or lies beyond the
// largest number of a type that saturates. Results of several calls can be added up.
template <typename T>
__device__ __forceinline__ float poison(float value) {
  if constexpr (Saturates<T>::kLargest > 0.0f) {
    return fabsf(value) <= Saturates<T>::kLargest ? 0.0f : not_a_number();
  } else {
    return 0.0f * rounded_to<T>(value);
  }
}

template <typename T, int N>
__device__ __forceinline__ float poison(const float (&values)[N]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += poison<T>(values[i]);
  return sum;
}

// Sets the flag that makes the step be skipped if a number could not be stored.
__device__ __forceinline__ void report_overflow(int* overflow, float poison) {
  if (poison != 0.0f) atomicExch(overflow, 1);  // NaN != 0
}

// Sum over a full warp; all lanes get the same bits, as a butterfly adds the same pairs in each.
// LANES < 32 sums within aligned groups of LANES.
template <int LANES = 32, typename V>
__device__ __forceinline__ V warp_sum(V value) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, step);
  }
  return value;
}

// Maximum over a full warp. A NaN is ignored here; it comes back through exp and the sum.
template <int LANES = 32>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, step));
  }
  return value;
}

// Sums over the existing lanes of this thread's warp; the result is valid in the first lane.
template <typename V>
__device__ __forceinline__ V present_sum(V value, int lane, int present) {
  const unsigned int mask = kFullWarp >> (32 - present);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const V other = __shfl_down_sync(mask, value, step);
    if (lane + step < present) value += other;
  }
  return value;
}

// Sum over the warps' values, which each has written to shared memory, by the first warp.
template <typename V>
__device__ __forceinline__ V sum_of_warps(const V* scratch, int lane, int warps) {
  V value = lane < warps ? scratch[lane] : V(0);
  for (int step = 1; step < warps; step *= 2) value += __shfl_xor_sync(kFullWarp, value, step);
  return value;
}

// Sums over a one-dimensional block of any size up to 1024; the results are valid in thread 0.
// All threads must call it. A barrier must separate two calls, because they share the scratch memory.
template <typename U, typename V>
__device__ __forceinline__ void block_sums(U& first, V& second) {
  __shared__ U firsts[32];
  __shared__ V seconds[32];
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int present = min(32, threads - (thread - lane));
  first = present_sum(first, lane, present);
  second = present_sum(second, lane, present);
  if (threads <= 32) return;
  if (lane == 0) {
    firsts[thread / 32] = first;
    seconds[thread / 32] = second;
  }
  __syncthreads();
  if (thread >= 32) return;
  first = sum_of_warps(firsts, lane, (threads + 31) / 32);
  second = sum_of_warps(seconds, lane, (threads + 31) / 32);
}

template <typename V>
__device__ __forceinline__ V block_sum(V value) {
  __shared__ V scratch[32];
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  value = present_sum(value, lane, min(32, threads - (thread - lane)));
  if (threads <= 32) return value;
  if (lane == 0) scratch[thread / 32] = value;
  __syncthreads();
  return thread < 32 ? sum_of_warps(scratch, lane, (threads + 31) / 32) : value;
}

// Sums N values over the 32 lanes of a warp at once. Each step halves the lanes that still share a
// value: a lane keeps one half of its values and gives the other half to its partner, so 10 values
// take 5 + 3 + 2 + 1 + 1 = 12 shuffles where 10 butterflies take 50. Afterwards values[0] of a lane
// is the sum of value number `transposed_index<N>(lane)`; each value has one lane of its own, and the
// index is negative in lanes that hold padding or a copy.
template <int N, int STEP, int LENGTH>
__device__ __forceinline__ void transpose_sum_step(float (&values)[LENGTH], int lane) {
  if constexpr (STEP > 0) {
    constexpr int half = (N + 1) / 2;
    if constexpr (N == 1) {
      values[0] += __shfl_xor_sync(kFullWarp, values[0], STEP);
    } else {
      const bool upper = (lane & STEP) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float high = i + half < N ? values[(i + half) % LENGTH] : 0.0f;
        const float kept = upper ? high : values[i];
        const float given = upper ? values[i] : high;
        values[i] = kept + __shfl_xor_sync(kFullWarp, given, STEP);
      }
    }
    transpose_sum_step<half, STEP / 2, LENGTH>(values, lane);
  }
}

template <int N>
__device__ __forceinline__ void transpose_sum(float (&values)[N], int lane) {
  transpose_sum_step<N, 16, N>(values, lane);
}

template <int N>
__device__ __forceinline__ int transposed_index(int lane) {
  int first = 0;
  int left = N;
  int size = N;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (size > 1) {
      const int half = (size + 1) / 2;
      const bool upper = (lane & step) != 0;
      first += upper ? half : 0;
      left = upper ? left - half : min(left, half);
      size = half;
    } else if ((lane & step) != 0) {
      left = 0;
    }
  }
  return left > 0 ? first : -1;
}
