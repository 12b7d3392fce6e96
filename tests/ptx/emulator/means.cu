// The mean loss of an epoch of each length (persistent/members.cuh), by a warp.
#include "persistent/input.cuh"
#include "persistent/members.cuh"

// mean[n - 1] of `loss` [n] for each n up to `most`, of batches of which the last has `left` examples.
__global__ void means(const float* loss, int most, int batch, int left, double* mean) {
  for (int steps = 1; steps <= most; ++steps) {
    const double found = mean_of_steps(loss, steps, batch, left < batch ? steps - 1 : steps, left);
    if (thread_index() == 0) mean[steps - 1] = found;
  }
}
