// gather: one mini-batch from the data set on the device, converted and scaled.
//
//   x[batch, features] = images[s*batch + r, features] * scale,  y[r] = labels[s*batch + r],
//   s = *cursor + offset.  images: uint8, row-major, pitch ldimages; x: pitch ldx; y: dense int32.
//
// Used by `preload`, where the data set lives on the GPU as bytes.
// Launch: one dimension, any size (grid-stride); a thread takes 4 features, so
// batch * ceil(features / 4) threads cover it in one pass.
// Limit: device-memory traffic, 1 byte read and sizeof(T) written a pixel; below about 1 MB of
// output, the latency of *cursor followed by that of the pixels.
#include "common.cuh"

template <typename T>
__global__ void gather(const unsigned char* __restrict__ images, int ldimages,
                       const unsigned char* __restrict__ labels, const int* __restrict__ cursor,
                       int offset, float scale, T* __restrict__ x, int ldx, int* __restrict__ y,
                       int batch, int features) {
  const long long first = static_cast<long long>(current_step(cursor, offset)) * batch;
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int quads = (features + 3) / 4;
  const bool vector = aligned(images, ldimages, 4);
  for (int quad = thread; quad < batch * quads; quad += stride) {
    const int row = quad / quads;
    const int feature = 4 * (quad - row * quads);
    const unsigned char* in = images + (first + row) * ldimages + feature;
    T* out = x + static_cast<long long>(row) * ldx + feature;
    if (vector && feature + 4 <= features) {
      const uchar4 pixels = *reinterpret_cast<const uchar4*>(in);
      out[0] = static_cast<T>(pixels.x * scale);
      out[1] = static_cast<T>(pixels.y * scale);
      out[2] = static_cast<T>(pixels.z * scale);
      out[3] = static_cast<T>(pixels.w * scale);
    } else {
      for (int i = 0; i < 4 && feature + i < features; ++i) {
        out[i] = static_cast<T>(in[i] * scale);
      }
    }
  }
  for (int row = thread; row < batch; row += stride) y[row] = labels[first + row];
}
