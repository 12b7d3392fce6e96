// sgd_forward, momentum_forward, adam_forward, sgd_recomputed, momentum_recomputed, adam_recomputed:
// a layer's update together with the next step's forward GEMM of that layer, for batches of a few rows,
// where both are bound by the memory traffic of weights and optimizer state.
//
//   w[rows, cols], its state, copy and bias: the step of an optimizer with the gradient dz^T x, as
//       weight_update.cu without a loss scale; of STEPS steps, one after
//       the other: (dz3, x3) is three steps before (dz, x)
//   c[batch, rows] = act(a[batch, cols] w^T + bias), with the new weights, rounded to TC; if NEXT
//   *_recomputed: c alone; the new weights and state are not stored, and a later launch computes them again
//
// dz, dz1.. [batch, rows]; x, x1.. [batch, cols]. K steps read weights and state K times and store them
// once, where an update in each step stores them K times and the forward GEMM reads the weights K times more.
// What is computed again has the same bits: it has the same operands and instructions.
//
// Template parameters: TX: type of dz, x and a; TC: of copy; TY: of c; ACTIVATION; BATCH: rows of the batch
// (1 .. 4); STEPS (1 .. 4); NEXT: a and c are given. w, its state and the bias are float. Null operands are
// not used: those of steps that STEPS leaves out, bias with its state, copy, rates, cursor, clock. Sums have
// a fixed order, so results repeat bit for bit.
//
// Launch: any number of blocks of 256 threads. A block processes 2 rows of weights at a time (4 for plain
// SGD and BATCH up to 2), a thread 4 columns of each.
// Limit: device-memory traffic; with Adam and 4 steps also the optimizer's instructions.
#include "elementwise/activations.cuh"
#include "gemm/deferred.cuh"

template <typename TX, typename TC, typename TY, typename ACTIVATION, int BATCH, int STEPS, bool NEXT>
__global__ void __launch_bounds__(deferred::kThreads, deferred::kBlocks<BATCH>)
    sgd_forward(const TX* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx,
        const TX* __restrict__ dz1, int lddz1, const TX* __restrict__ x1, int ldx1,
        const TX* __restrict__ dz2, int lddz2, const TX* __restrict__ x2, int ldx2,
        const TX* __restrict__ dz3, int lddz3, const TX* __restrict__ x3, int ldx3, float* w, int ldw,
        float* bias, TC* copy, int ldcopy, const TX* __restrict__ a, int lda, TY* c, int ldc,
        const float* __restrict__ rates, const int* __restrict__ cursor, const int* __restrict__ clock,
        int rows, int cols, float lr, float decay, int offset) {
  const deferred::Layer<TX, TC, TY, ACTIVATION, Sgd, BATCH, STEPS, true, NEXT> layer{
      {{dz, lddz, x, ldx}, {dz1, lddz1, x1, ldx1}, {dz2, lddz2, x2, ldx2}, {dz3, lddz3, x3, ldx3}},
      w, ldw,
      {},
      bias, copy, ldcopy, a, lda, c, ldc,
      {rates, cursor, clock, nullptr, nullptr, offset}, rows, cols, lr,
      {decay}};
  layer.run();
}

template <typename TX, typename TC, typename TY, typename ACTIVATION, int BATCH, int STEPS, bool NEXT>
__global__ void __launch_bounds__(deferred::kThreads, deferred::kBlocks<BATCH>)
    momentum_forward(const TX* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx,
        const TX* __restrict__ dz1, int lddz1, const TX* __restrict__ x1, int ldx1,
        const TX* __restrict__ dz2, int lddz2, const TX* __restrict__ x2, int ldx2,
        const TX* __restrict__ dz3, int lddz3, const TX* __restrict__ x3, int ldx3, float* w, int ldw,
        float* v, int ldv, float* bias, float* bias_v, TC* copy, int ldcopy, const TX* __restrict__ a,
        int lda, TY* c, int ldc, const float* __restrict__ rates, const int* __restrict__ cursor,
        const int* __restrict__ clock, int rows, int cols, float lr, float decay, float momentum,
        bool nesterov, int offset) {
  const deferred::Layer<TX, TC, TY, ACTIVATION, Momentum, BATCH, STEPS, true, NEXT> layer{
      {{dz, lddz, x, ldx}, {dz1, lddz1, x1, ldx1}, {dz2, lddz2, x2, ldx2}, {dz3, lddz3, x3, ldx3}},
      w, ldw,
      {{v}, {ldv}, {bias_v}},
      bias, copy, ldcopy, a, lda, c, ldc,
      {rates, cursor, clock, nullptr, nullptr, offset}, rows, cols, lr,
      {decay, momentum, nesterov}};
  layer.run();
}

template <typename TX, typename TC, typename TY, typename ACTIVATION, int BATCH, int STEPS, bool NEXT>
__global__ void __launch_bounds__(deferred::kThreads, deferred::kBlocks<BATCH>)
    adam_forward(const TX* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx,
        const TX* __restrict__ dz1, int lddz1, const TX* __restrict__ x1, int ldx1,
        const TX* __restrict__ dz2, int lddz2, const TX* __restrict__ x2, int ldx2,
        const TX* __restrict__ dz3, int lddz3, const TX* __restrict__ x3, int ldx3, float* w, int ldw,
        float* m, int ldm, float* v, int ldv, float* bias, float* bias_m, float* bias_v, TC* copy,
        int ldcopy, const TX* __restrict__ a, int lda, TY* c, int ldc, const float* __restrict__ rates,
        const int* __restrict__ cursor, const int* __restrict__ clock, int rows, int cols, float lr,
        float decay, double beta1, double beta2, float eps, bool decoupled, int offset) {
  const deferred::Layer<TX, TC, TY, ACTIVATION, ApproximateAdam, BATCH, STEPS, true, NEXT> layer{
      {{dz, lddz, x, ldx}, {dz1, lddz1, x1, ldx1}, {dz2, lddz2, x2, ldx2}, {dz3, lddz3, x3, ldx3}},
      w, ldw,
      {{m, v}, {ldm, ldv}, {bias_m, bias_v}},
      bias, copy, ldcopy, a, lda, c, ldc,
      {rates, cursor, clock, nullptr, nullptr, offset}, rows, cols, lr,
      {decay, beta1, beta2, eps, decoupled}};
  layer.run();
}

template <typename TX, typename TC, typename TY, typename ACTIVATION, int BATCH, int STEPS>
__global__ void __launch_bounds__(deferred::kThreads, deferred::kBlocks<BATCH>)
    sgd_recomputed(const TX* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx,
        const TX* __restrict__ dz1, int lddz1, const TX* __restrict__ x1, int ldx1,
        const TX* __restrict__ dz2, int lddz2, const TX* __restrict__ x2, int ldx2,
        const TX* __restrict__ dz3, int lddz3, const TX* __restrict__ x3, int ldx3,
        const float* __restrict__ w, int ldw, const float* __restrict__ bias, const TX* __restrict__ a,
        int lda, TY* c, int ldc, const float* __restrict__ rates, const int* __restrict__ cursor,
        const int* __restrict__ clock, int rows, int cols, float lr, float decay, int offset) {
  const deferred::Layer<TX, TC, TY, ACTIVATION, Sgd, BATCH, STEPS, false, true> layer{
      {{dz, lddz, x, ldx}, {dz1, lddz1, x1, ldx1}, {dz2, lddz2, x2, ldx2}, {dz3, lddz3, x3, ldx3}},
      w, ldw,
      {},
      bias, nullptr, 0, a, lda, c, ldc,
      {rates, cursor, clock, nullptr, nullptr, offset}, rows, cols, lr,
      {decay}};
  layer.run();
}

template <typename TX, typename TC, typename TY, typename ACTIVATION, int BATCH, int STEPS>
__global__ void __launch_bounds__(deferred::kThreads, deferred::kBlocks<BATCH>)
    momentum_recomputed(const TX* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx,
        const TX* __restrict__ dz1, int lddz1, const TX* __restrict__ x1, int ldx1,
        const TX* __restrict__ dz2, int lddz2, const TX* __restrict__ x2, int ldx2,
        const TX* __restrict__ dz3, int lddz3, const TX* __restrict__ x3, int ldx3,
        const float* __restrict__ w, int ldw, const float* __restrict__ v, int ldv,
        const float* __restrict__ bias, const float* __restrict__ bias_v, const TX* __restrict__ a, int lda,
        TY* c, int ldc, const float* __restrict__ rates, const int* __restrict__ cursor,
        const int* __restrict__ clock, int rows, int cols, float lr, float decay, float momentum,
        bool nesterov, int offset) {
  const deferred::Layer<TX, TC, TY, ACTIVATION, Momentum, BATCH, STEPS, false, true> layer{
      {{dz, lddz, x, ldx}, {dz1, lddz1, x1, ldx1}, {dz2, lddz2, x2, ldx2}, {dz3, lddz3, x3, ldx3}},
      w, ldw,
      {{v}, {ldv}, {bias_v}},
      bias, nullptr, 0, a, lda, c, ldc,
      {rates, cursor, clock, nullptr, nullptr, offset}, rows, cols, lr,
      {decay, momentum, nesterov}};
  layer.run();
}

template <typename TX, typename TC, typename TY, typename ACTIVATION, int BATCH, int STEPS>
__global__ void __launch_bounds__(deferred::kThreads, deferred::kBlocks<BATCH>)
    adam_recomputed(const TX* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx,
        const TX* __restrict__ dz1, int lddz1, const TX* __restrict__ x1, int ldx1,
        const TX* __restrict__ dz2, int lddz2, const TX* __restrict__ x2, int ldx2,
        const TX* __restrict__ dz3, int lddz3, const TX* __restrict__ x3, int ldx3,
        const float* __restrict__ w, int ldw, const float* __restrict__ m, int ldm,
        const float* __restrict__ v, int ldv, const float* __restrict__ bias,
        const float* __restrict__ bias_m, const float* __restrict__ bias_v, const TX* __restrict__ a,
        int lda, TY* c, int ldc, const float* __restrict__ rates, const int* __restrict__ cursor,
        const int* __restrict__ clock, int rows, int cols, float lr, float decay, double beta1, double beta2,
        float eps, bool decoupled, int offset) {
  const deferred::Layer<TX, TC, TY, ACTIVATION, ApproximateAdam, BATCH, STEPS, false, true> layer{
      {{dz, lddz, x, ldx}, {dz1, lddz1, x1, ldx1}, {dz2, lddz2, x2, ldx2}, {dz3, lddz3, x3, ldx3}},
      w, ldw,
      {{m, v},
       {ldm, ldv},
       {bias_m, bias_v}},
      bias, nullptr, 0, a, lda, c, ldc,
      {rates, cursor, clock, nullptr, nullptr, offset}, rows, cols, lr,
      {decay, beta1, beta2, eps, decoupled}};
  layer.run();
}
