// Epilogues of a GEMM (gemm.cuh). An epilogue hands the sums of a tile to a body, four or two at a
// time and with their row and column, or stores them as partial sums in scratch memory, which add_parts
// reduces in order.
#pragma once
#include "persistent/block.cuh"

// An epilogue that calls a body for each tile. early(mt, nt) is called ahead of the GEMM's loop, for loads
// that should overlap with it; store() is called after it. All lanes call sums(nt, first, second, there): those
// that are `there` have the sums of two columns of tile nt, the lane % 4-th two.
template <typename FINISH>
constexpr bool kIsLate = false;  // whether early() is to be called behind the loop, which needs the registers
template <typename FINISH>
constexpr bool kIsByRow = false;  // the same for a row of a task's tiles, ahead of the stores of that row

template <typename F>
struct Finish {
  struct Early {};
  F body;
  __device__ __forceinline__ Early early(int, int) const { return {}; }
  __device__ __forceinline__ void store(int part, int mt, int nt, const float (&sum)[4],
                                        const Early&) const {
    body(part, mt, nt, sum);
  }
  __device__ __forceinline__ void sums(int, float, float, bool) const {}
};

template <typename F>
__device__ __forceinline__ Finish<F> finish(F body) {
  return {body};
}

// Two values of each half of a 16 x 8 tile: body(row, column, value, value of the next column).
template <typename F>
__device__ __forceinline__ auto pairs(F body) {
  return finish([=](int, int mt, int nt, const float (&sum)[4]) {
    const int lane = lane_index();
    const int row = mt * 16 + lane / 4;
    const int column = nt * 8 + lane % 4 * 2;
    body(row, column, sum[0], sum[1]);
    body(row + 8, column, sum[2], sum[3]);
  });
}

// Four values of a row, for which neighbouring lanes exchange halves: body(row, column, four values).
template <typename F>
__device__ __forceinline__ auto quads(F body) {
  return finish([=](int, int mt, int nt, const float (&sum)[4]) {
    const int lane = lane_index();
    const bool odd = lane % 2 != 0;
    const float x = __shfl_xor_sync(kFullWarp, odd ? sum[0] : sum[2], 1);
    const float y = __shfl_xor_sync(kFullWarp, odd ? sum[1] : sum[3], 1);
    body(mt * 16 + lane / 4 + (odd ? 8 : 0), nt * 8 + lane % 4 / 2 * 4,
         odd ? make_float4(x, y, sum[2], sum[3]) : make_float4(sum[0], sum[1], x, y));
  });
}

// Adds the biases of the rows first. They are loaded ahead of the GEMM's loop: after it, each load would wait
// for the store before it, which may alias as far as the compiler knows. Rows beyond the layer's have floats
// there, too, which a body leaves out: so no load has a condition, and tiles of the same rows share them.
template <typename F>
struct Biased {
  struct Early {
    float upper, lower;
  };
  const float* biases;
  F finish;

  __device__ __forceinline__ Early early(int mt, int) const {
    const float* const row = biases + mt * 16 + lane_index() / 4;
    return {row[0], row[8]};
  }
  __device__ __forceinline__ void store(int part, int mt, int nt, const float (&sum)[4],
                                        const Early& bias) const {
    const float all[4] = {sum[0] + bias.upper, sum[1] + bias.upper, sum[2] + bias.lower,
                          sum[3] + bias.lower};
    finish.store(part, mt, nt, all, {});
  }
  __device__ __forceinline__ void sums(int, float, float, bool) const {}
};

template <typename F>
__device__ __forceinline__ Biased<F> biased(const float* biases, F finish) {
  return {biases, finish};
}

// A body that adds the row's bias to four or two values and passes them on.
template <typename F>
struct WithBias {
  const float* biases;
  F body;

  __device__ __forceinline__ void operator()(int row, int column, float4 v) const {
    const float bias = biases[row];
    body(row, column, make_float4(v.x + bias, v.y + bias, v.z + bias, v.w + bias));
  }
  __device__ __forceinline__ void operator()(int row, int column, float2 v) const {
    const float bias = biases[row];
    body(row, column, make_float2(v.x + bias, v.y + bias));
  }
};

template <typename F>
__device__ __forceinline__ WithBias<F> with_bias(const float* biases, F body) {
  return {biases, body};
}

// The column sums of tiles as quads: of four lanes that have two each, every second one gets a quad, if it is
// `there`: body(number of the quad among the layer's biases, quad). All lanes call it.
template <typename F>
__device__ __forceinline__ void by_quads(int nt, float first, float second, bool there, F body) {
  const float third = __shfl_xor_sync(kFullWarp, first, 1);
  const float fourth = __shfl_xor_sync(kFullWarp, second, 1);
  const int t = lane_index() % 4;
  if (there && t % 2 == 0) body(nt * 2 + t / 2, make_float4(first, second, third, fourth));
}

// A body of four or two values that passes them on in pairs.
template <typename F>
struct ByPairs {
  F body;

  __device__ __forceinline__ void operator()(int row, int column, float2 v) const {
    body(row, column, v.x, v.y);
  }
  __device__ __forceinline__ void operator()(int row, int column, float4 v) const {
    body(row, column, v.x, v.y);
    body(row, column + 2, v.z, v.w);
  }
};

template <typename F>
__device__ __forceinline__ ByPairs<F> by_pairs(F body) {
  return {body};
}

// Whether a body takes pairs: then add_parts gives it pairs, if there are threads for all.
template <typename F>
constexpr bool kTakesPairs = false;
template <typename F>
constexpr bool kTakesPairs<ByPairs<F>> = true;
template <typename F>
constexpr bool kTakesPairs<WithBias<F>> = kTakesPairs<F>;

template <bool TWO>
struct Several {
  using Numbers = float4;
};
template <>
struct Several<true> {
  using Numbers = float2;
};

__device__ __forceinline__ void add_to(float4& sum, const float4& more) {
  sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}

__device__ __forceinline__ void add_to(float2& sum, const float2& more) {
  sum.x += more.x, sum.y += more.y;
}

// Stores the partial sums of a GEMM that is split along k in scratch memory, [SPLIT][ROWS][pitch].
template <typename SHAPE, int ROWS>
__device__ __forceinline__ auto store_parts(float* scratch) {
  return finish([=](int part, int mt, int nt, const float (&sum)[4]) {
    const int lane = lane_index();
    float* p = scratch + (part * ROWS + mt * 16 + lane / 4) * SHAPE::kPitch + nt * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(p) = make_float2(sum[0], sum[1]);
    *reinterpret_cast<float2*>(p + 8 * SHAPE::kPitch) = make_float2(sum[2], sum[3]);
  });
}

// Reduces PARTS partial sums, ROWS rows apart, in ascending order, for the first `count` of ROWS rows of
// PITCH floats: body(row, column, four values), or two values if there are enough threads. A thread has
// several loads in flight: the compiler moves none ahead of a store that may alias. A thread with fewer rows
// loads its first again.
template <typename SHAPE, int PARTS, int ROWS, int PITCH = SHAPE::kPitch, typename F>
__device__ __forceinline__ void add_parts(const float* parts, int count, F body) {
  constexpr int columns = smaller(PITCH, SHAPE::kColumns);
  constexpr bool two = kTakesPairs<F> && ROWS * columns / 2 <= SHAPE::kThreads;
  using Numbers = typename Several<two>::Numbers;
  constexpr int wide = two ? 2 : 4;
  constexpr int across = columns / wide;
  constexpr int each = smaller(ceil_div(ROWS * across, SHAPE::kThreads), ceil_div(4, PARTS));
  const int all = count * across;
#pragma unroll 1
  for (int first = thread_index(); first < all; first += each * SHAPE::kThreads) {
    Numbers v[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int next = first + i * SHAPE::kThreads;
      const int item = next < all ? next : first;
      const float* p = parts + item / across * PITCH + item % across * wide;
      v[i] = *reinterpret_cast<const Numbers*>(p);
#pragma unroll
      for (int part = 1; part < PARTS; ++part) {
        add_to(v[i], *reinterpret_cast<const Numbers*>(p + part * ROWS * PITCH));
      }
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int item = first + i * SHAPE::kThreads;
      if (item < all) body(item / across, item % across * wide, v[i]);
    }
    if constexpr (ROWS * across <= each * SHAPE::kThreads) break;
  }
}
