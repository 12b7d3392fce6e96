// adam: one step of Adam, or of AdamW if decoupled, as in PyTorch.
//
//   g = dw / loss_scale[0] (+ decay * w; if decoupled, w -= lr * decay * w first instead)
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2;  t = clock[1] + s + 1
//   w -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps);  copy = round(w * copy_scale)
//
// w, dw, copy, m, v: [rows, cols], each with its own pitch (a vector is one row); m and v are float32
// and start at 0. What the optional operands mean: updates.cuh.
// template <TW, TG, TC>: storage types of w, dw (and other) and copy. Scalars: rows, cols, share,
// other_share, lr, decay, beta1, beta2 (double: 1 - beta is what counts), eps, decoupled (bool),
// copy_scale, offset, stochastic (bool), seed, stream.
// Launch: as sgd. Limit: device-memory traffic, 16 bytes a weight more than sgd.
#include "optimizers/step_functors.cuh"
#include "optimizers/updates.cuh"

template <typename TW, typename TG, typename TC>
__global__ void adam(TW* __restrict__ w, int ldw, const TG* __restrict__ dw, int lddw,
                     const TG* __restrict__ other, int ldother, float* __restrict__ m, int ldm,
                     float* __restrict__ v, int ldv, TC* __restrict__ copy, int ldcopy,
                     const float* __restrict__ rates, const int* __restrict__ cursor,
                     const int* __restrict__ clock, const float* __restrict__ loss_scale,
                     const int* __restrict__ overflow, int rows, int cols, float share,
                     float other_share, float lr, float decay, double beta1, double beta2,
                     float eps, bool decoupled, float copy_scale, int offset, bool stochastic,
                     unsigned long long seed, unsigned int stream) {
  pdl_wait();
  pdl_trigger();
  constexpr int N = update_length<TW>();
  if (left_out(overflow)) return;
  const float rate = learning_rate(lr, rates, cursor, offset);
  const Rounding how = rounding(stochastic, seed, stream, cursor, offset, clock);
  const Adam optimizer(rate, total_step(cursor, offset, clock) + 1, decay, beta1, beta2, eps, decoupled);
  float first[N];
  float second[N];
  update_matrix(
      w, ldw, dw, lddw, other, ldother, share, other_share, copy, ldcopy, copy_scale,
      vector_aligned<N>(m, ldm) && vector_aligned<N>(v, ldv), loss_scale, rows, cols, how,
      [&](int row, int column, bool whole, int count) {
        load_part<N>(first, at(m, ldm, row, column), whole, count);
        load_part<N>(second, at(v, ldv, row, column), whole, count);
      },
      [&](float weight, float gradient, int i) {
        float state[2] = {first[i], second[i]};
        weight = optimizer(weight, gradient, state);
        first[i] = state[0];
        second[i] = state[1];
        return weight;
      },
      [&](int row, int column, bool whole, int count) {
        store_part<N>(at(m, ldm, row, column), first, whole, count);
        store_part<N>(at(v, ldv, row, column), second, whole, count);
      });
}
