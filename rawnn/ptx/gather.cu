// gather: one mini-batch from the data set on the device, in the epoch's order, converted, scaled
// and normalised.
//
//   batch row r is example e = order[s*stride + r] (s*stride + r without an order);
//   s = *cursor + offset
//   x[r, features] = (images[e, features] * scale - mean) * inverse_std
//   y[r] = labels[e];  t[r, outputs] = targets[e, outputs]
//
// images: TI = unsigned char, float16 or float, row-major, pitch ldimages; x: TX = float, float16,
// bfloat16 or an 8-bit float, pitch ldx; labels: TL = unsigned char or int; y: dense int32;
// targets, t: float, pitches ldtargets, ldt; order: int32; mean, inverse_std: float [features].
// Null pointers: order, labels with y, targets with t, mean, inverse_std.
//
// Used by `preload`, where the data set lives on the GPU.
// Launch: one dimension, any size (grid-stride); a thread takes as many features as fill 16 bytes
// of x (4 floats, 8 of 16 bits, 16 of 8), and the first threads a label besides, so that
// batch * ceil(features * sizeof(TX) / 16) threads cover it in one pass; 256 threads a block.
// Limit: device-memory traffic, sizeof(TI) read and sizeof(TX) written an element; below about 1 MB
// of output, the latency of *cursor followed by that of the order and of the pixels. One store a
// thread, whatever the type: a warp's stores are neighbours. For 4096 x 784 on an H200 in an epoch's
// order, 8 bfloat16 a thread take 5.1 us and 4 a thread 7.2 us; 4 floats a thread 7.2 us, 8 7.6 us.
// The parameters stand in the order in which they are needed: each further 64 bytes of them are
// another miss in the constant cache, 0.07 us a launch.
#include "common.cuh"
#include "pdl.cuh"
#include "types.cuh"

// N neighbouring elements as floats; `from` is aligned to them, or to 16 bytes.
template <int N>
__device__ __forceinline__ void load_elements(float (&values)[N], const unsigned char* from) {
  unsigned int words[N / 4];
  load_words(words, from);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = static_cast<float>((words[i / 4] >> (8 * (i % 4))) & 255u);
  }
}

template <int N, typename T>
__device__ __forceinline__ void load_elements(float (&values)[N], const T* from) {
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
  constexpr int each = 16 / static_cast<int>(sizeof(TX));
  constexpr int read = each * static_cast<int>(sizeof(TI)) < 16
                           ? each * static_cast<int>(sizeof(TI)) : 16;
  const int parts = (features + each - 1) / each;
  const bool vector = aligned(images, ldimages, read) && aligned(x, ldx, 16) &&
                      aligned(mean, 0, 16) && aligned(inverse_std, 0, 16);
  int row = thread / parts;  // before the first use of the step: the division hides behind the load
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
  const int total = batch * parts;
  for (int part = thread; part < total;) {
    const int feature = each * (part - row * parts);
    const TI* in = images + example * ldimages + feature;
    TX* out = x + static_cast<long long>(row) * ldx + feature;
    if (vector && feature + each <= features) {
      float values[each];
      load_elements(values, in);
#pragma unroll
      for (int i = 0; i < each; ++i) values[i] *= scale;
      if (mean != nullptr) {
        float shifts[each];
        load_values(shifts, mean + feature);
#pragma unroll
        for (int i = 0; i < each; ++i) values[i] -= shifts[i];
      }
      if (inverse_std != nullptr) {
        float factors[each];
        load_values(factors, inverse_std + feature);
#pragma unroll
        for (int i = 0; i < each; ++i) values[i] *= factors[i];
      }
      store_values(out, values);
    } else {
      float values[each];  // all loads go out before one is waited for
#pragma unroll
      for (int i = 0; i < each; ++i) {
        values[i] = feature + i < features ? to_float(in[i]) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < each; ++i) {
        if (feature + i >= features) break;
        float value = values[i] * scale;
        if (mean != nullptr) value -= mean[feature + i];
        if (inverse_std != nullptr) value *= inverse_std[feature + i];
        out[i] = from_float<TX>(value);
      }
    }
    part += threads;
    if (part >= total) break;
    row = part / parts;
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
