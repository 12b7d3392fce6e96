// weight_update: a layer's weight gradient and its SGD update in one kernel; the gradient is not
// stored.
//
//   g = dz^T x / loss_scale[0];  w[m, n] -= lr * (g + decay * w);  copy[m, n] = round(w * copy_scale)
//   bias[m] -= lr * (column sums of dz / loss_scale[0] + decay * bias), unless bias is null
//   dz: [k, m], x: [k, n] (k the batch), each with its own pitch; bias dense float32
//
// What the optional operands mean: updates.cuh (copy, rates, cursor, clock, loss_scale, overflow).
// template <TX, TW, TC, TD, ACC>: storage types of x, w and copy; of dz, TX unless given; ACC is float
// unless given, or float16 for sums in half precision (compute tf32 is float here). Scalars: m, n, k,
// lr, decay, copy_scale, offset, stochastic (bool), seed, stream.
// The variant for every shape and type.
// Launch: as matmul.cu: blocks of 16 x 16, grid.x covers n and grid.y covers m. The threads of the
// first column update the bias.
// Limit: load instructions, as matmul.cu.
#include "primitives/accumulate.cuh"
#include "optimizers/updates.cuh"

template <typename TX, typename TW, typename TC, typename TD = TX, typename ACC = float>
__global__ void __launch_bounds__(256)
    weight_update(const TD* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx,
                  TW* __restrict__ w, int ldw, float* __restrict__ bias, TC* __restrict__ copy,
                  int ldcopy, const float* __restrict__ rates, const int* __restrict__ cursor,
                  const int* __restrict__ clock, const float* __restrict__ loss_scale,
                  const int* __restrict__ overflow, int m, int n, int k, float lr, float decay,
                  float copy_scale, int offset, bool stochastic, unsigned long long seed,
                  unsigned int stream) {
  pdl_wait();
  pdl_trigger();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (row >= m || column >= n || left_out(overflow)) return;
  const float rate = learning_rate(lr, rates, cursor, offset);
  const float factor = unscale(loss_scale);
  const Rounding how = rounding(stochastic, seed, stream, cursor, offset, clock);
  const bool biased = column == 0 && bias != nullptr;
  const TD* left = dz + row;
  const TX* right = x + column;
  ACC sum = from_float<ACC>(0.0f);
  float total = 0.0f;
  for (int b = 0; b < k; ++b) {
    const TD incoming = left[static_cast<long long>(b) * lddz];
    accumulate(sum, incoming, right[static_cast<long long>(b) * ldx]);
    if (biased) total += to_float(incoming);
  }
  TW* const weight = at(w, ldw, row, column);
  const float before = to_float(*weight);
  const float after = before - rate * (factor * to_float(sum) + decay * before);
  const unsigned int element = static_cast<unsigned int>(row) * static_cast<unsigned int>(n) +
                               static_cast<unsigned int>(column);
  *weight = round_weight<TW>(after, how, element);
  if (copy != nullptr) *at(copy, ldcopy, row, column) = from_float<TC>(after * copy_scale);
  if (biased) bias[row] -= rate * (factor * total + decay * bias[row]);
}
