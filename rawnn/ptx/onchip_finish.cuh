// What becomes of the tiles of a product (onchip_product.cuh): told four, two or one number at a time where
// they lie, or left as parts of sums in scratch memory, which are added up in their order.
#pragma once
#include "onchip_device.cuh"

// What is done with the tiles of a product: `early(mt, nt)` is called ahead of the product, for
// loads that are to come in beside it, store() behind it, sums() for two columns' sums.
template <typename F>
struct Finish {
  struct Early {};
  F body;
  __device__ __forceinline__ Early early(int, int) const { return {}; }
  __device__ __forceinline__ void store(int part, int mt, int nt, const float (&sum)[4],
                                        const Early&) const {
    body(part, mt, nt, sum);
  }
  __device__ __forceinline__ void sums(int, float, float) const {}
};

template <typename F>
__device__ __forceinline__ Finish<F> finish(F body) {
  return {body};
}

// Two numbers of a tile of 16 x 8 in each half: body(row, column, value, value of the next column).
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

// Four numbers: lanes give their neighbour half of what they have. body(row, column, four values).
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

// The sums of two neighbouring columns, of which the lanes 0 to 3 have two each, as the quads of
// those with an even number: body(place among the layer's biases, quad).
template <typename F>
__device__ __forceinline__ void by_quads(int nt, float first, float second, F body) {
  constexpr unsigned int four = 0xfu;
  const float third = __shfl_xor_sync(four, first, 1);
  const float fourth = __shfl_xor_sync(four, second, 1);
  const int lane = lane_index();
  if (lane % 2 == 0) body(nt * 2 + lane / 2, make_float4(first, second, third, fourth));
}

// A body that takes four numbers, of one that takes two.
template <typename F>
__device__ __forceinline__ auto by_pairs(F body) {
  return [=](int row, int column, float4 v) {
    body(row, column, v.x, v.y);
    body(row, column + 2, v.z, v.w);
  };
}

// The parts of a product that was split, in scratch memory [SPLIT][ROWS][pitch]: store_parts puts
// them there.
template <typename SHAPE, int ROWS>
__device__ __forceinline__ auto store_parts(float* scratch) {
  return finish([=](int part, int mt, int nt, const float (&sum)[4]) {
    const int lane = lane_index();
    float* p = scratch + (part * ROWS + mt * 16 + lane / 4) * SHAPE::kPitch + nt * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(p) = make_float2(sum[0], sum[1]);
    *reinterpret_cast<float2*>(p + 8 * SHAPE::kPitch) = make_float2(sum[2], sum[3]);
  });
}

// The first `count` of ROWS rows of PITCH floats, each the sum of PARTS parts ROWS rows apart, in their
// order: body(row, column, four values).
template <typename SHAPE, int PARTS, int ROWS, int PITCH = SHAPE::kPitch, typename F>
__device__ __forceinline__ void add_parts(const float* parts, int count, F body) {
  constexpr int across = smaller(PITCH, SHAPE::kColumns) / 4;
#pragma unroll 1
  for (int i = thread_index(); i < count * across; i += SHAPE::kThreads) {
    const int row = i / across;
    const int column = i % across * 4;
    const float* p = parts + row * PITCH + column;
    float4 v = *reinterpret_cast<const float4*>(p);
#pragma unroll
    for (int part = 1; part < PARTS; ++part) {
      const float4 u = *reinterpret_cast<const float4*>(p + part * ROWS * PITCH);
      v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
    }
    body(row, column, v);
    if constexpr (ROWS * across <= SHAPE::kThreads) break;
  }
}
