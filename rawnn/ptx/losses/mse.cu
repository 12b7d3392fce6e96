// mse, mse_backward, mse_gradient: the mean squared error over all elements, as PyTorch's MSELoss.
//
//   loss[s] = mean over rows and columns of (z - t)^2             s = *cursor + offset
//   dz      = 2 (z - t) / (rows * cols) * loss_scale[0]
//   loss_scale counts as 1 where it is null; *overflow = 1 where TD cannot hold a dz.
//
// template <TT> (mse), <TT, TD>: storage types of t and dz; z [rows, cols] is float32. Scalars: rows,
// cols; offset except in mse_backward. mse_gradient does both at once; steps without metrics use
// mse_backward. If `parts` is not 0, block b of mse_gradient writes loss_parts[s, b] of `parts` columns
// instead of loss (metrics.cuh).
// Launch: mse_backward one dimension, any size; a thread processes 4 columns. The others ONE block of up
// to 1024 threads, or any number of blocks of 256 with a `workspace` (metrics.cuh): one block up to 4,096
// elements; beyond, ceil(elements / 2048), 512 at most.
// Limit: latency; device-memory traffic from a few million elements on.
#include "losses/pointwise.cuh"

template <typename TT>
__global__ void __launch_bounds__(1024)
    mse(const float* __restrict__ z, int ldz, const TT* __restrict__ t, int ldt,
        const int* __restrict__ cursor, int offset, int* __restrict__ workspace,
        float* __restrict__ loss, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  float* const none = nullptr;
  report_pointwise<SquaredError>(z, ldz, t, ldt, cursor, offset, none, 0, nullptr, nullptr,
                                 workspace, loss, nullptr, rows, cols);
}

template <typename TT, typename TD>
__global__ void mse_backward(const float* __restrict__ z, int ldz, const TT* __restrict__ t,
                             int ldt, TD* __restrict__ dz, int lddz,
                             const float* __restrict__ loss_scale, int* __restrict__ overflow,
                             int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  pointwise<SquaredError>(z, ldz, t, ldt, dz, lddz, loss_scale, overflow, rows, cols, false);
}

template <typename TT, typename TD>
__global__ void __launch_bounds__(1024)
    mse_gradient(const float* __restrict__ z, int ldz, const TT* __restrict__ t, int ldt,
                 const int* __restrict__ cursor, int offset, TD* __restrict__ dz, int lddz,
                 const float* __restrict__ loss_scale, int* __restrict__ overflow,
                 int* __restrict__ workspace, float* __restrict__ loss,
                 float* __restrict__ loss_parts, int rows, int cols, int parts) {
  pdl_wait();
  pdl_trigger();
  report_pointwise<SquaredError>(z, ldz, t, ldt, cursor, offset, dz, lddz, loss_scale, overflow,
                                 workspace, loss, nullptr, rows, cols, {loss_parts, nullptr, parts});
}
