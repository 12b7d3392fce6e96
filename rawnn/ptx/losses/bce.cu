// bce, bce_accuracy, bce_backward, bce_gradient: the binary cross-entropy of logits, mean over all
// elements, as PyTorch's BCEWithLogitsLoss.
//
//   loss[s]    = mean over rows and columns of max(z, 0) - z t + log(1 + exp(-|z|))
//   correct[s] = number of elements with (z > 0) == (t > 0.5)       s = *cursor + offset
//   dz         = (sigmoid(z) - t) / (rows * cols) * loss_scale[0]
//   loss_scale counts as 1 where it is null; *overflow = 1 where TD cannot hold a dz.
//
// template <TT> (bce, bce_accuracy), <TT, TD>: storage types of t and dz; z [rows, cols] is float32.
// Scalars: rows, cols; offset except in bce_backward. bce_gradient does all at once, without loss or
// correct if they are null. If `parts` is not 0, block b writes its sums to loss_parts[s, b] and
// correct_parts[s, b] of `parts` columns instead (metrics.cuh).
// Launch: as mse.cu: bce_backward any grid, the others one block, or several with a `workspace`.
// Limit: latency; device-memory traffic from a few million elements on.
#include "losses/pointwise.cuh"

template <typename TT>
__global__ void __launch_bounds__(1024)
    bce(const float* __restrict__ z, int ldz, const TT* __restrict__ t, int ldt,
        const int* __restrict__ cursor, int offset, int* __restrict__ workspace,
        float* __restrict__ loss, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  float* const none = nullptr;
  report_pointwise<LogitCrossEntropy>(z, ldz, t, ldt, cursor, offset, none, 0, nullptr, nullptr,
                                      workspace, loss, nullptr, rows, cols);
}

template <typename TT>
__global__ void __launch_bounds__(1024)
    bce_accuracy(const float* __restrict__ z, int ldz, const TT* __restrict__ t, int ldt,
                 const int* __restrict__ cursor, int offset, int* __restrict__ workspace,
                 int* __restrict__ correct, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  float* const none = nullptr;
  report_pointwise<LogitCrossEntropy>(z, ldz, t, ldt, cursor, offset, none, 0, nullptr, nullptr,
                                      workspace, nullptr, correct, rows, cols);
}

template <typename TT, typename TD>
__global__ void bce_backward(const float* __restrict__ z, int ldz, const TT* __restrict__ t,
                             int ldt, TD* __restrict__ dz, int lddz,
                             const float* __restrict__ loss_scale, int* __restrict__ overflow,
                             int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  pointwise<LogitCrossEntropy>(z, ldz, t, ldt, dz, lddz, loss_scale, overflow, rows, cols, false);
}

template <typename TT, typename TD>
__global__ void __launch_bounds__(1024)
    bce_gradient(const float* __restrict__ z, int ldz, const TT* __restrict__ t, int ldt,
                 const int* __restrict__ cursor, int offset, TD* __restrict__ dz, int lddz,
                 const float* __restrict__ loss_scale, int* __restrict__ overflow,
                 int* __restrict__ workspace, float* __restrict__ loss,
                 int* __restrict__ correct, float* __restrict__ loss_parts,
                 int* __restrict__ correct_parts, int rows, int cols, int parts) {
  pdl_wait();
  pdl_trigger();
  report_pointwise<LogitCrossEntropy>(z, ldz, t, ldt, cursor, offset, dz, lddz, loss_scale,
                                      overflow, workspace, loss, correct, rows, cols,
                                      {loss_parts, correct_parts, parts});
}
