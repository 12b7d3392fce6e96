// momentum: one step of stochastic gradient descent with momentum, as in PyTorch's SGD.
//
//   g = dw / loss_scale[0] + decay * w;  v = momentum * v + g;  if nesterov: g += momentum * v,
//   else g = v;  w -= lr * g;  copy = round(w * copy_scale)
//
// w, dw, copy, v: [rows, cols], each with its own pitch (a vector is one row); v is float32 and starts
// at 0. What the optional operands mean: updates.cuh.
// template <TW, TG, TC>: storage types of w, dw (and other) and copy. Scalars: rows, cols, share,
// other_share, lr, decay, momentum, nesterov (bool), copy_scale, offset, stochastic (bool), seed, stream.
// Launch: as sgd. Limit: device-memory traffic, 8 bytes a weight more than sgd.
#include "optimizers/step_functors.cuh"
#include "optimizers/updates.cuh"

template <typename TW, typename TG, typename TC>
__global__ void momentum(TW* __restrict__ w, int ldw, const TG* __restrict__ dw, int lddw,
                         const TG* __restrict__ other, int ldother, float* __restrict__ v,
                         int ldv, TC* __restrict__ copy, int ldcopy,
                         const float* __restrict__ rates, const int* __restrict__ cursor,
                         const int* __restrict__ clock, const float* __restrict__ loss_scale,
                         const int* __restrict__ overflow, int rows, int cols, float share,
                         float other_share, float lr, float decay, float momentum, bool nesterov,
                         float copy_scale, int offset, bool stochastic, unsigned long long seed,
                         unsigned int stream) {
  pdl_wait();
  pdl_trigger();
  constexpr int N = update_length<TW>();
  if (left_out(overflow)) return;
  const float rate = learning_rate(lr, rates, cursor, offset);
  const Rounding how = rounding(stochastic, seed, stream, cursor, offset, clock);
  const Momentum optimizer(rate, 0, decay, momentum, nesterov);
  float velocity[N];
  update_matrix(
      w, ldw, dw, lddw, other, ldother, share, other_share, copy, ldcopy, copy_scale,
      vector_aligned<N>(v, ldv), loss_scale, rows, cols, how,
      [&](int row, int column, bool whole, int count) {
        load_part<N>(velocity, at(v, ldv, row, column), whole, count);
      },
      [&](float weight, float gradient, int i) {
        return optimizer(weight, gradient, &velocity[i]);
      },
      [&](int row, int column, bool whole, int count) {
        store_part<N>(at(v, ldv, row, column), velocity, whole, count);
      });
}
