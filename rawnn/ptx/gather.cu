// gather: one mini-batch from the data set on the device, in the epoch's order, converted, scaled and
// normalised.
//
//   batch row r is example e = order[s*stride + r] (s*stride + r without an order), s = *cursor + offset
//   x[r, features] = (images[e, features] * scale - mean) * inverse_std
//   y[r] = labels[e];  t[r, outputs] = targets[e, outputs]
//
// images: TI = unsigned char, float16 or float, row-major, pitch ldimages; x: TX = float, float16,
// bfloat16 or an 8-bit float, pitch ldx; labels: TL = unsigned char or int; y: dense int32; targets, t:
// float, pitches ldtargets, ldt; order: int32; mean, inverse_std: float [features]. Null pointers:
// order, labels with y, targets with t, mean, inverse_std.
//
// Used by `preload`, where the data set lives on the GPU.
// Launch: one dimension, any size (grid-stride); a thread takes 4 features, and the first threads a
// label besides, so batch * ceil(features / 4) threads cover it in one pass; 256 threads a block.
// Limit: device-memory traffic, sizeof(TI) read and sizeof(TX) written an element; below about 1 MB of
// output, the latency of *cursor followed by that of the order and of the pixels. Four elements a
// thread, not 16: a warp's stores are then neighbours.
#include "common.cuh"
#include "pdl.cuh"
#include "types.cuh"

// Four neighbouring elements as floats; `from` is aligned to four elements.
__device__ __forceinline__ void load_four(float (&values)[4], const unsigned char* from) {
  const uchar4 four = *reinterpret_cast<const uchar4*>(from);
  values[0] = four.x;
  values[1] = four.y;
  values[2] = four.z;
  values[3] = four.w;
}

template <typename T>
__device__ __forceinline__ void load_four(float (&values)[4], const T* from) {
  load_values(values, from);
}

template <typename TI, typename TX, typename TL>
__global__ void gather(const int* __restrict__ cursor, int offset, int stride,
                       const TI* __restrict__ images, int ldimages, int features,
                       TX* __restrict__ x, int ldx, int batch, const int* __restrict__ order,
                       const TL* __restrict__ labels, const float* __restrict__ mean,
                       const float* __restrict__ inverse_std, float scale, int outputs,
                       int* __restrict__ y, const float* __restrict__ targets,
                       float* __restrict__ t, int ldtargets, int ldt) {
  pdl_wait();
  pdl_trigger();
  const int step = current_step(cursor, offset);
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int quads = (features + 3) / 4;
  const bool vector = aligned(images, ldimages, 4 * static_cast<int>(sizeof(TI))) &&
                      aligned(x, ldx, 4 * static_cast<int>(sizeof(TX))) && aligned(mean, 0, 16) &&
                      aligned(inverse_std, 0, 16);
  int row = thread / quads;  // before the first use of the step: the division hides behind the load
  const long long first = static_cast<long long>(step) * stride;
  const bool labelled = labels != nullptr && thread < batch;
  long long label_at = first + thread;
  long long example = first + row;
  if (order != nullptr) {  // both loads go out before either is waited for
    const int label_from = labelled ? order[label_at] : 0;
    const int example_from = row < batch ? order[example] : 0;
    label_at = label_from;
    example = example_from;
  }
  // The label's load goes out beside that of the pixels, and its store comes last.
  const int label = labelled ? static_cast<int>(labels[label_at]) : 0;
  const int total = batch * quads;
  for (int quad = thread; quad < total;) {
    const int feature = 4 * (quad - row * quads);
    const TI* in = images + example * ldimages + feature;
    TX* out = x + static_cast<long long>(row) * ldx + feature;
    if (vector && feature + 4 <= features) {
      float values[4];
      load_four(values, in);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] *= scale;
      if (mean != nullptr) {
        const float4 shift = *reinterpret_cast<const float4*>(mean + feature);
        values[0] -= shift.x;
        values[1] -= shift.y;
        values[2] -= shift.z;
        values[3] -= shift.w;
      }
      if (inverse_std != nullptr) {
        const float4 factor = *reinterpret_cast<const float4*>(inverse_std + feature);
        values[0] *= factor.x;
        values[1] *= factor.y;
        values[2] *= factor.z;
        values[3] *= factor.w;
      }
      store_values(out, values);
    } else {
#pragma unroll 1
      for (int i = 0; i < 4 && feature + i < features; ++i) {
        float value = to_float(in[i]) * scale;
        if (mean != nullptr) value -= mean[feature + i];
        if (inverse_std != nullptr) value *= inverse_std[feature + i];
        out[i] = from_float<TX>(value);
      }
    }
    quad += threads;
    if (quad >= total) break;
    row = quad / quads;
    example = order != nullptr ? order[first + row] : first + row;
  }
  if (labelled) y[thread] = label;
  if (labels != nullptr) {
#pragma unroll 1
    for (int other = thread + threads; other < batch; other += threads) {
      y[other] = static_cast<int>(labels[order != nullptr ? order[first + other] : first + other]);
    }
  }
  if (targets != nullptr) {
#pragma unroll 1
    for (int element = thread; element < batch * outputs; element += threads) {
      const int r = element / outputs;
      const int output = element - r * outputs;
      const long long from = order != nullptr ? order[first + r] : first + r;
      t[static_cast<long long>(r) * ldt + output] = targets[from * ldtargets + output];
    }
  }
}
