// Parts of the kernels of linear.cu: loading rows of uint8 pixels, and the end of a step.
#pragma once
#include "primitives/common.cuh"
#include "losses/metrics.cuh"

constexpr int kTileFeatures = 8;

// The example at row `row` of the batch of `step`.
template <bool ORDERED>
__device__ __forceinline__ long long example_of(const int* __restrict__ order, int step, int stride,
                                                int row) {
  const long long index = static_cast<long long>(step) * stride + row;
  return ORDERED ? order[index] : index;
}

// Eight pixels of one row, from `feature` on; 0 beyond `features`.
__device__ __forceinline__ void load_pixels(unsigned int (&packed)[2], const unsigned char* image,
                                            int feature, int features, bool vector) {
  if (vector) {
    const uint2 both = *reinterpret_cast<const uint2*>(image + feature);
    packed[0] = both.x;
    packed[1] = both.y;
    return;
  }
#pragma unroll
  for (int i = 0; i < kTileFeatures; ++i) {
    if (feature + i < features) {
      packed[i / 4] |= static_cast<unsigned int>(image[feature + i]) << (8 * (i % 4));
    }
  }
}

__device__ __forceinline__ float4 unpack(unsigned int packed) {
  return make_float4(static_cast<float>(packed & 255u), static_cast<float>((packed >> 8) & 255u),
                     static_cast<float>((packed >> 16) & 255u), static_cast<float>(packed >> 24));
}

// The bias and the metrics: each warp sums two columns of dz, and one more warp the rows' losses.
template <int CLASSES>
__device__ __forceinline__ void update_bias(const float* __restrict__ dz, int lddz,
                                            const float* __restrict__ row_loss,
                                            const int* __restrict__ row_correct,
                                            float* __restrict__ bias,
                                            const float* __restrict__ rates,
                                            float* __restrict__ loss, int* __restrict__ correct,
                                            int step, int batch, float lr, float decay, int lane,
                                            int warp, int warps) {
  constexpr int pairs = (CLASSES + 1) / 2;
  for (int task = warp; task <= pairs; task += warps) {
    if (task < pairs) {
      const int c = 2 * task;
      const bool second = c + 1 < CLASSES;
      const float before0 = bias[c];
      const float before1 = second ? bias[c + 1] : 0.0f;
      float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll 4
      for (int row = lane; row < batch; row += 32) {
        const float* gradient = dz + static_cast<long long>(row) * lddz + c;
        sum0 += gradient[0];
        if (second) sum1 += gradient[1];
      }
      // Not earlier: its address depends on the cursor, unlike those of the loads above.
      const float rate = rates != nullptr ? rates[step] : lr;
      sum0 = warp_sum(sum0);
      sum1 = warp_sum(sum1);
      if (lane == 0) {
        bias[c] = before0 - rate * (sum0 + decay * before0);
        if (second) bias[c + 1] = before1 - rate * (sum1 + decay * before1);
      }
    } else {
      warp_report([&](int row) { return row_loss[row]; }, row_correct, batch, step, loss, correct);
    }
  }
}
