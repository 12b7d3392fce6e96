// Bias and ReLU in one, four elements a thread. Plugged into the training step:
//   python -m rawnn --opt best,bias_relu=examples/lab/bias_relu.cu
//   python -m rawnn kernel try examples/lab/bias_relu.cu
/* rawnn
op = "bias_relu"
name = "four"
kernel = "bias_relu<{z}, {a}>"
grid = "cdiv(rows * cdiv(cols, 4), 256)"
block = 256
*/
#include "primitives/pdl.cuh"
#include "primitives/types.cuh"

template <typename TZ, typename TA>
__global__ void bias_relu(const TZ* __restrict__ z, int ldz, const float* __restrict__ bias,
                          TA* __restrict__ a, int lda, int rows, int cols) {
  pdl_wait();  // under `pdl` it may begin before the product ahead has ended
  pdl_trigger();
  const int fours = (cols + 3) / 4;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= rows * fours) return;
  const int row = i / fours, first = i % fours * 4;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int column = first + j;
    if (column < cols) {
      const float sum = to_float(z[row * ldz + column]) + bias[column];
      a[row * lda + column] = from_float<TA>(fmaxf(sum, 0.0f));
    }
  }
}
