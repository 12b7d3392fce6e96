// softmax, softmax_backward: the output layer's probabilities and the gradient of the mean
// cross-entropy with respect to its pre-activations.
//
//   softmax:          p[r, :] = exp(z[r, :] - max(z[r, :])) / sum of the same
//   softmax_backward: dz = (p - onehot(y)) / rows * loss_scale[0]        y: int32, dense
//   loss_scale counts as 1 where it is null; *overflow = 1 where TD cannot hold a dz.
//
// template <TZ>: storage type of z; <TD>: of dz; p is float32. Scalars: rows, cols. In place is allowed
// if both have the same type. Used by the layer-by-layer step; `cudnn` replaces softmax, `fuse` both
// (loss.cu).
// Launch: softmax one warp for each row, blocks of a multiple of 32 threads, grid.x * (block / 32) warps
// in all, any number (grid-stride over rows). softmax_backward one dimension, any size; a thread
// processes 4 columns.
// Limit: latency; three passes over a row, which is in the L1 cache after the first.
#include "losses/softmax.cuh"

template <typename TZ>
__global__ void softmax(const TZ* z, int ldz, float* p, int ldp, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warps = static_cast<int>(blockDim.x / 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp >= warps) return;  // the incomplete last warp of an unusual block
  for (int row = static_cast<int>(blockIdx.x) * warps + warp; row < rows;
       row += static_cast<int>(gridDim.x) * warps) {
    const TZ* in = z + static_cast<long long>(row) * ldz;
    float* out = p + static_cast<long long>(row) * ldp;
    float largest = -infinity();
    for (int column = lane; column < cols; column += 32) {
      largest = fmaxf(largest, to_float(in[column]));
    }
    largest = warp_max(largest);
    const float sum = sum_of_powers<32>([&](int column) { return to_float(in[column]); }, cols,
                                        largest, lane);
    for (int column = lane; column < cols; column += 32) {
      out[column] = expf(to_float(in[column]) - largest) / sum;
    }
  }
}

template <typename TD>
__global__ void softmax_backward(const float* p, int ldp, const int* __restrict__ y, TD* dz,
                                 int lddz, const float* __restrict__ loss_scale,
                                 int* __restrict__ overflow, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  constexpr int N = vector_length<float, TD>();
  float share = 1.0f / static_cast<float>(rows);
  if (loss_scale != nullptr) share *= loss_scale[0];
  const bool wide = vector_aligned<N>(p, ldp) && vector_aligned<N>(dz, lddz);
  for_vectors<N>(rows, cols, wide, [&](int row, int column, bool whole, int count) {
    const int label = y[row];
    float values[N];
    load_part<N>(values, at(p, ldp, row, column), whole, count);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = cross_entropy_slope(values[i], column + i == label, share);
    }
    store_part<N>(at(dz, lddz, row, column), values, whole, count);
    if (overflow != nullptr) report_overflow(overflow, poison<TD>(values));
  });
}
