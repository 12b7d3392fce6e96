// loss_sums: the metrics of steps, from the partial sums of each step's blocks.
//
//   loss[s]    = sum over b of loss_parts[s, b] / terms           s = *cursor + offset + i, i < span
//   correct[s] = sum over b of correct_parts[s, b]                where correct is not null
//
// loss_parts, correct_parts: [steps, parts], dense. Scalars: offset, span, parts, terms.
// Used by `fuse`: the kernels that write partial sums need not wait for each other, and this one runs
// once a graph, concurrently with the steps. Sums have a fixed order: results repeat bit for bit.
// Launch: grid (span) of 128 threads.
// Limit: latency, once in many steps.
#include "losses/metrics.cuh"

__global__ void __launch_bounds__(128)
    loss_sums(const float* __restrict__ loss_parts, const int* __restrict__ correct_parts,
              const int* __restrict__ cursor, float* __restrict__ loss, int* __restrict__ correct,
              int offset, int span, int parts, float terms) {
  pdl_wait();
  pdl_trigger();
  const int step = current_step(cursor, offset) + static_cast<int>(blockIdx.x);
  const long long row = static_cast<long long>(step) * parts;
  Tally tally = {0.0f, 0};
#pragma unroll 4
  for (int part = static_cast<int>(threadIdx.x); part < parts;
       part += static_cast<int>(blockDim.x)) {
    tally.loss += loss_parts[row + part];
    if (correct != nullptr) tally.right += correct_parts[row + part];
  }
  block_tally(tally, loss, correct);
  if (threadIdx.x == 0) {
    loss[step] = tally.loss / terms;
    if (correct != nullptr) correct[step] = tally.right;
  }
}
