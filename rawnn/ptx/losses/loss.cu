// cross_entropy, accuracy, loss_accuracy, loss_gradient, softmax_loss_gradient: what a step reports,
// and from which the backward pass starts.
//
//   loss[s]    = mean over rows of -log(p[r, y[r]])              s = *cursor + offset
//   correct[s] = number of rows whose first maximum is at y[r]
//   dz         = (p - onehot(y)) / rows * loss_scale[0]          p: [rows, cols]; y: int32, dense
//   softmax_loss_gradient starts from z and keeps the probabilities to itself.
//   loss_scale counts as 1 where it is null; *overflow = 1 where TD cannot hold a dz.
//
// template <TD> of the gradients: storage type of dz; p and z are float32. Scalars: rows, cols, offset.
// The gradients leave out what is null of loss and correct; where `parts` is not 0, block b writes its
// sums to loss_parts[s, b] and correct_parts[s, b] of `parts` columns in their place (metrics.cuh).
// The step that reports uses the first two; `fuse` first joins them (loss_accuracy), then takes
// loss_gradient, then softmax_loss_gradient. A probability below FLT_MIN counts as FLT_MIN. A NaN
// stays a NaN, and a label outside 0 .. cols-1 makes the loss NaN: a broken run must be seen.
// dz must not overlap p or z.
// Launch: ONE block of up to 1024 threads, one dimension, or several blocks of 256 with a `workspace`
// (metrics.cuh). Up to 32 columns a thread takes a row, and keeps it in registers; of wider rows a
// warp takes one, if the block is made of whole warps (loss_rows.cuh). Rows go round the grid and the
// partial sums meet in a fixed order, so results repeat bit for bit. One block up to 4,096 elements;
// from there on ceil(rows / 256) blocks, or of rows wider than 32 columns ceil(rows / 8), 512 at most
// (H200, one block against several: 128 x 128 12.8 and 6.3 us, 4096 x 10 15.3 and 5.6, 4096 x 1024
// 1257 and 17.6).
// Only what is wanted of the kernels that are no templates is compiled (RAWNN_CHOSEN_...): all three
// take a second, one a third of it.
// Limit: latency. One multiprocessor does all the work of a small batch; hence one trip to memory for
// all that a row needs, and no exchange between threads but for sums.
#include "losses/loss_rows.cuh"

// All rows. What is null is not wanted; the kernels pass literal nulls, so its work vanishes.
template <bool SOFTMAX, typename TD>
__device__ __forceinline__ void report(const float* __restrict__ in, int ldin,
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
      TD* gradient = dz == nullptr ? dz : dz + static_cast<long long>(row) * lddz;
      if (cols <= 12) {
        short_row<3, SOFTMAX>(values, wide_in, gradient, wide_dz, y[row], cols, share, overflow,
                              tally);
      } else {
        short_row<8, SOFTMAX>(values, wide_in, gradient, wide_dz, y[row], cols, share, overflow,
                              tally);
      }
    }
  } else if (threads % 32 == 0) {
    const bool wide_in = vector_aligned<4>(in, ldin);
    const bool wide_dz = vector_aligned<4>(dz, lddz);
    const int lane = first & 31;
    for (int row = first / 32; row < rows; row += stride / 32) {
      const float* values = in + static_cast<long long>(row) * ldin;
      TD* gradient = dz == nullptr ? dz : dz + static_cast<long long>(row) * lddz;
      const int label = y[row];
      if constexpr (SOFTMAX) {
        quads_row(values, wide_in, gradient, wide_dz, label, cols, share, overflow, lane, tally);
      } else {
        long_row<32, SOFTMAX>(values, gradient, label, cols, share, overflow, lane, tally);
      }
    }
  } else {
    for (int row = first; row < rows; row += stride) {
      const float* values = in + static_cast<long long>(row) * ldin;
      TD* gradient = dz == nullptr ? dz : dz + static_cast<long long>(row) * lddz;
      long_row<1, SOFTMAX>(values, gradient, y[row], cols, share, overflow, 0, tally);
    }
  }
  report_tally(tally, workspace, step, static_cast<float>(rows), loss, correct, parts);
}

#if !defined(RAWNN_CHOSEN) || defined(RAWNN_CHOSEN_cross_entropy)
__global__ void __launch_bounds__(1024)
    cross_entropy(const float* __restrict__ p, int ldp, const int* __restrict__ y,
                  const int* __restrict__ cursor, int offset, int* __restrict__ workspace,
                  float* __restrict__ loss, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  float* const none = nullptr;
  report<false>(p, ldp, y, cursor, offset, none, 0, nullptr, nullptr, workspace, loss, nullptr,
                rows, cols);
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
  report<false>(p, ldp, y, cursor, offset, none, 0, nullptr, nullptr, workspace, nullptr, correct,
                rows, cols);
}
#endif

#if !defined(RAWNN_CHOSEN) || defined(RAWNN_CHOSEN_loss_accuracy)
__global__ void __launch_bounds__(1024)
    loss_accuracy(const float* __restrict__ p, int ldp, const int* __restrict__ y,
                  const int* __restrict__ cursor, int offset, int* __restrict__ workspace,
                  float* __restrict__ loss, int* __restrict__ correct, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  float* const none = nullptr;
  report<false>(p, ldp, y, cursor, offset, none, 0, nullptr, nullptr, workspace, loss, correct,
                rows, cols);
}
#endif

template <typename TD>
__global__ void __launch_bounds__(1024)
    loss_gradient(const float* __restrict__ p, int ldp, const int* __restrict__ y,
                  const int* __restrict__ cursor, int offset, TD* __restrict__ dz, int lddz,
                  const float* __restrict__ loss_scale, int* __restrict__ overflow,
                  int* __restrict__ workspace, float* __restrict__ loss,
                  int* __restrict__ correct, float* __restrict__ loss_parts,
                  int* __restrict__ correct_parts, int rows, int cols, int parts) {
  pdl_wait();
  pdl_trigger();
  report<false>(p, ldp, y, cursor, offset, dz, lddz, loss_scale, overflow, workspace, loss,
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
  report<true>(z, ldz, y, cursor, offset, dz, lddz, loss_scale, overflow, workspace, loss, correct,
               rows, cols, {loss_parts, correct_parts, parts});
}
