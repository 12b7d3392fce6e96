// sgd: one step of plain stochastic gradient descent.
//
//   g = dw / loss_scale[0] + decay * w;  w -= lr * g;  copy = round(w * copy_scale)
//
// w, dw, copy: [rows, cols], each with its own pitch (a vector is one row); padding is unchanged.
// What the optional operands mean: updates.cuh (other, copy, rates, cursor, clock, loss_scale, overflow).
// template <TW, TG, TC>: storage types of w, dw (and other) and copy. Scalars: rows, cols, share,
// other_share, lr, decay, copy_scale, offset, stochastic (bool; used only if w is bfloat16),
// seed (64 bits), stream (32 bits).
// Used if `fuse` has not moved the update into the weight-gradient GEMM.
// Launch: one dimension, any size (grid-stride); a thread processes 16 bytes of w: 4, 8 or 16 columns.
// More threads have nothing to do, and for a large matrix they are tens of thousands of blocks.
// Limit: device-memory traffic: w, dw and copy as read and written. rows * cols < 2^32.
#include "optimizers/step_functors.cuh"
#include "optimizers/updates.cuh"

template <typename TW, typename TG, typename TC>
__global__ void sgd(TW* __restrict__ w, int ldw, const TG* __restrict__ dw, int lddw,
                    const TG* __restrict__ other, int ldother, TC* __restrict__ copy, int ldcopy,
                    const float* __restrict__ rates, const int* __restrict__ cursor,
                    const int* __restrict__ clock, const float* __restrict__ loss_scale,
                    const int* __restrict__ overflow, int rows, int cols, float share,
                    float other_share, float lr, float decay, float copy_scale, int offset,
                    bool stochastic, unsigned long long seed, unsigned int stream) {
  pdl_wait();
  pdl_trigger();
  if (left_out(overflow)) return;
  const float rate = learning_rate(lr, rates, cursor, offset);
  const Rounding how = rounding(stochastic, seed, stream, cursor, offset, clock);
  const Sgd optimizer(rate, 0, decay);
  const auto nothing = [](int, int, bool, int) {};
  update_matrix(
      w, ldw, dw, lddw, other, ldother, share, other_share, copy, ldcopy, copy_scale, true,
      loss_scale, rows, cols, how, nothing,
      [&](float weight, float gradient, int) {
        return optimizer(weight, gradient, nullptr);
      },
      nothing);
}
