// cross_entropy, accuracy, loss_accuracy, loss_gradient, softmax_loss_gradient: the loss over classes,
// its metrics, and the gradient that the backward pass starts from.
//
//   loss[s]    = mean over rows of -log(p[r, y[r]])              s = *cursor + offset
//   correct[s] = number of rows whose first maximum is at y[r]
//   dz         = (p - onehot(y)) / rows * loss_scale[0]          p: [rows, cols]; y: int32, dense
//   softmax_loss_gradient starts from z and does not store the probabilities.
//   loss_scale counts as 1 where it is null; *overflow = 1 where TD cannot hold a dz.
//
// template <TD> of the gradients: storage type of dz; p and z are float32. Scalars: rows, cols, offset.
// The gradients skip loss or correct if they are null. If `parts` is not 0, block b writes its sums to
// loss_parts[s, b] and correct_parts[s, b] of `parts` columns instead (metrics.cuh).
// Without `fuse` a step uses the first two. `fuse` joins them (loss_accuracy), then uses loss_gradient,
// then softmax_loss_gradient. The loss of a row whose probability is below FLT_MIN comes from z, which is
// read for that alone. A NaN stays a NaN, and a label outside 0 .. cols-1 makes the loss NaN, so that a
// broken run is visible.
// dz must not overlap p or z.
// Launch: ONE block of up to 1024 threads, one dimension, or several blocks of 256 with a `workspace`
// (metrics.cuh). With up to 32 columns a thread processes a row in registers. A warp processes a wider
// row if the block consists of whole warps (loss_rows.cuh). Rows are divided over the grid and partial
// sums are added in a fixed order, so results repeat bit for bit. One block is used up to 4,096
// elements; beyond, ceil(rows / 256) blocks, or ceil(rows / 8) for rows wider than 32 columns, 512 at
// most.
// The kernels that are not templates are compiled only on demand (RAWNN_CHOSEN_...): all three take a
// second to compile, one a third of it.
// Limit: latency. One multiprocessor does all the work of a small batch, so everything a row needs is
// loaded in one round trip, and threads exchange nothing but sums.
#include "losses/loss_rows.cuh"

// All rows. Null outputs are skipped; the kernels pass literal nulls, so their code is removed.
template <bool SOFTMAX, typename TD>
__device__ __forceinline__ void report(const float* __restrict__ in, int ldin,
                                       const float* __restrict__ z, int ldz,
                                       const int* __restrict__ y, const int* __restrict__ cursor,
                                       int offset, TD* __restrict__ dz, int lddz,
                                       const float* __restrict__ loss_scale,
                                       int* __restrict__ overflow,
                                       int* __restrict__ workspace, float* loss,
                                       int* correct, int rows, int cols,
                                       const Parts& parts = {}) {
  const int step = current_step(cursor, offset);
  const int threads = static_cast<int>(blockDim.x);
  const int first = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  const int stride = static_cast<int>(gridDim.x) * threads;
  float share = 1.0f / static_cast<float>(rows);
  if (loss_scale != nullptr) share *= loss_scale[0];
  Tally tally = {0.0f, 0};
  if (cols <= 32) {
    const bool wide_in = vector_aligned<4>(in, ldin);
    const bool wide_dz = vector_aligned<4>(dz, lddz);
    for (int row = first; row < rows; row += stride) {
      const float* values = in + static_cast<long long>(row) * ldin;
      const float* logits = z == nullptr ? z : z + static_cast<long long>(row) * ldz;
      TD* gradient = dz == nullptr ? dz : dz + static_cast<long long>(row) * lddz;
      if (cols <= 12) {
        short_row<3, SOFTMAX>(values, wide_in, logits, gradient, wide_dz, y[row], cols, share,
                              overflow, tally);
      } else {
        short_row<8, SOFTMAX>(values, wide_in, logits, gradient, wide_dz, y[row], cols, share,
                              overflow, tally);
      }
    }
  } else if (threads % 32 == 0) {
    const bool wide_in = vector_aligned<4>(in, ldin);
    const bool wide_dz = vector_aligned<4>(dz, lddz);
    const int lane = first & 31;
    for (int row = first / 32; row < rows; row += stride / 32) {
      const float* values = in + static_cast<long long>(row) * ldin;
      const float* logits = z == nullptr ? z : z + static_cast<long long>(row) * ldz;
      TD* gradient = dz == nullptr ? dz : dz + static_cast<long long>(row) * lddz;
      const int label = y[row];
      if constexpr (SOFTMAX) {
        quads_row(values, wide_in, gradient, wide_dz, label, cols, share, overflow, lane, tally);
      } else {
        long_row<32, SOFTMAX>(values, logits, gradient, label, cols, share, overflow, lane, tally);
      }
    }
  } else {
    for (int row = first; row < rows; row += stride) {
      const float* values = in + static_cast<long long>(row) * ldin;
      const float* logits = z == nullptr ? z : z + static_cast<long long>(row) * ldz;
      TD* gradient = dz == nullptr ? dz : dz + static_cast<long long>(row) * lddz;
      long_row<1, SOFTMAX>(values, logits, gradient, y[row], cols, share, overflow, 0, tally);
    }
  }
  report_tally(tally, workspace, step, static_cast<float>(rows), loss, correct, parts);
}

#if !defined(RAWNN_CHOSEN) || defined(RAWNN_CHOSEN_cross_entropy)
__global__ void __launch_bounds__(1024)
    cross_entropy(const float* __restrict__ p, int ldp, const float* __restrict__ z, int ldz,
                  const int* __restrict__ y, const int* __restrict__ cursor, int offset,
                  int* __restrict__ workspace, float* __restrict__ loss, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  float* const none = nullptr;
  report<false>(p, ldp, z, ldz, y, cursor, offset, none, 0, nullptr, nullptr, workspace, loss,
                nullptr, rows, cols);
}
#endif

#if !defined(RAWNN_CHOSEN) || defined(RAWNN_CHOSEN_accuracy)
__global__ void __launch_bounds__(1024)
    accuracy(const float* __restrict__ p, int ldp, const int* __restrict__ y,
             const int* __restrict__ cursor, int offset, int* __restrict__ workspace,
             int* __restrict__ correct, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  float* const none = nullptr;
  report<false>(p, ldp, nullptr, 0, y, cursor, offset, none, 0, nullptr, nullptr, workspace,
                nullptr, correct, rows, cols);
}
#endif

#if !defined(RAWNN_CHOSEN) || defined(RAWNN_CHOSEN_loss_accuracy)
__global__ void __launch_bounds__(1024)
    loss_accuracy(const float* __restrict__ p, int ldp, const float* __restrict__ z, int ldz,
                  const int* __restrict__ y, const int* __restrict__ cursor, int offset,
                  int* __restrict__ workspace, float* __restrict__ loss, int* __restrict__ correct, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  float* const none = nullptr;
  report<false>(p, ldp, z, ldz, y, cursor, offset, none, 0, nullptr, nullptr, workspace, loss,
                correct, rows, cols);
}
#endif

template <typename TD>
__global__ void __launch_bounds__(1024)
    loss_gradient(const float* __restrict__ p, int ldp, const float* __restrict__ z, int ldz,
                  const int* __restrict__ y, const int* __restrict__ cursor, int offset,
                  TD* __restrict__ dz, int lddz, const float* __restrict__ loss_scale,
                  int* __restrict__ overflow, int* __restrict__ workspace, float* __restrict__ loss,
                  int* __restrict__ correct, float* __restrict__ loss_parts,
                  int* __restrict__ correct_parts, int rows, int cols, int parts) {
  pdl_wait();
  pdl_trigger();
  report<false>(p, ldp, z, ldz, y, cursor, offset, dz, lddz, loss_scale, overflow, workspace, loss,
                correct, rows, cols, {loss_parts, correct_parts, parts});
}

template <typename TD>
__global__ void __launch_bounds__(1024)
    softmax_loss_gradient(const float* __restrict__ z, int ldz, const int* __restrict__ y,
                          const int* __restrict__ cursor, int offset, TD* __restrict__ dz, int lddz,
                          const float* __restrict__ loss_scale, int* __restrict__ overflow,
                          int* __restrict__ workspace, float* __restrict__ loss,
                          int* __restrict__ correct, float* __restrict__ loss_parts,
                          int* __restrict__ correct_parts, int rows, int cols, int parts) {
  pdl_wait();
  pdl_trigger();
  report<true>(z, ldz, nullptr, 0, y, cursor, offset, dz, lddz, loss_scale, overflow, workspace,
               loss, correct, rows, cols, {loss_parts, correct_parts, parts});
}
