// initialise: a parameter's initial values, uniform in [-bound, bound); bound 0 writes zeros. initialise_members:
// the same of many networks, the matrices [rows, cols] of all below each other, each by the seed in its row of
// `members` (persistent/members.cuh).
//
//   w: [rows, cols], leading dimension ldw (a vector is one row). Element i, counted row by row
//   without padding, is word i % 4 of draw i / 4 of (seed, stream), the same number on every device
//   and in rawnn/common/random.py, rounded to T. Padding is unchanged.
//
// Used once, at the start of training.
// Launch: one dimension, any size (grid-stride over draws): ceil(rows * cols / 4) threads cover it
// in one pass; 256 threads a block. Many networks: along y.
// Limit: device-memory traffic, sizeof(T) written an element.
#include "primitives/random.cuh"
#include "primitives/types.cuh"

template <typename T>
__device__ __forceinline__ void draw_parameter(T* __restrict__ w, int ldw, int rows, int cols,
                                               unsigned long long seed, unsigned int stream,
                                               float bound) {
  const long long count = static_cast<long long>(rows) * cols;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  long long draw = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; 4 * draw < count; draw += stride) {
    const Words bits = philox(seed, stream, static_cast<unsigned long long>(draw));
    long long row = 4 * draw / cols;
    int col = static_cast<int>(4 * draw - row * cols);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (4 * draw + i < count) {
        // No multiplication if bound is 0: it would write -0 half of the time.
        const float value = bound != 0.0f ? uniform_of(bits.word[i], bound) : 0.0f;
        w[row * ldw + col] = from_float<T>(value);
      }
      if (++col == cols) {
        col = 0;
        ++row;
      }
    }
  }
}

template <typename T>
__global__ void initialise(T* __restrict__ w, int ldw, int rows, int cols, unsigned long long seed,
                           unsigned int stream, float bound) {
  draw_parameter(w, ldw, rows, cols, seed, stream, bound);
}

template <typename T>
__global__ void initialise_members(T* __restrict__ w, int ldw, const int* __restrict__ members,
                                   int ldmembers, int networks, int rows, int cols,
                                   unsigned int stream, float bound) {
  for (int member = static_cast<int>(blockIdx.y); member < networks;
       member += static_cast<int>(gridDim.y)) {
    const int* const words = members + static_cast<long long>(member) * ldmembers;
    const unsigned long long seed = *reinterpret_cast<const unsigned long long*>(words);
    draw_parameter(w + static_cast<long long>(member) * rows * ldw, ldw, rows, cols, seed, stream,
                   bound);
  }
}
