// gather: one mini-batch from the data set on the device, converted and scaled.
//
//   x[batch, features] = images[s*batch + r, features] * scale,  y[r] = labels[s*batch + r],
//   s = *cursor + offset.  images: uint8, row-major, pitch ldimages; x: pitch ldx; y: dense int32.
//
// Used by `preload`, where the data set lives on the GPU as bytes.
// Launch: one dimension, any size (grid-stride); a thread takes 4 features, and the first threads a
// label besides, so batch * ceil(features / 4) threads cover it in one pass.
// Limit: device-memory traffic, 1 byte read and sizeof(T) written a pixel; below about 1 MB of
// output, the latency of *cursor followed by that of the pixels. Four pixels a thread, not 16: a
// warp's stores are then neighbours.
#include "common.cuh"

template <typename T>
__device__ __forceinline__ void store_pixels(T* to, uchar4 pixels, float scale) {
  to[0] = static_cast<T>(pixels.x * scale);
  to[1] = static_cast<T>(pixels.y * scale);
  to[2] = static_cast<T>(pixels.z * scale);
  to[3] = static_cast<T>(pixels.w * scale);
}

__device__ __forceinline__ void store_pixels(float* to, uchar4 pixels, float scale) {
  *reinterpret_cast<float4*>(to) =
      make_float4(pixels.x * scale, pixels.y * scale, pixels.z * scale, pixels.w * scale);
}

template <typename T>
__global__ void gather(const unsigned char* __restrict__ images, int ldimages,
                       const unsigned char* __restrict__ labels, const int* __restrict__ cursor,
                       int offset, float scale, T* __restrict__ x, int ldx, int* __restrict__ y,
                       int batch, int features) {
  const int step = current_step(cursor, offset);
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int quads = (features + 3) / 4;
  const bool vector = aligned(images, ldimages, 4) && aligned(x, ldx, 16);
  int row = thread / quads;  // before the first use of the step: the division hides behind the load
  const long long first = static_cast<long long>(step) * batch;
  // The label's load goes out beside that of the pixels, and its store comes last.
  const int label = thread < batch ? labels[first + thread] : 0;
  for (int quad = thread; quad < batch * quads; quad += stride, row = quad / quads) {
    const int feature = 4 * (quad - row * quads);
    const unsigned char* in = images + (first + row) * ldimages + feature;
    T* out = x + static_cast<long long>(row) * ldx + feature;
    if (vector && feature + 4 <= features) {
      store_pixels(out, *reinterpret_cast<const uchar4*>(in), scale);
    } else {
      for (int i = 0; i < 4 && feature + i < features; ++i) {
        out[i] = static_cast<T>(in[i] * scale);
      }
    }
  }
  if (thread < batch) y[thread] = label;
  for (int other = thread + stride; other < batch; other += stride) {
    y[other] = labels[first + other];
  }
}
