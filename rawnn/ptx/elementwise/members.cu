// member_orders, member_means: around an epoch of many networks whose steps are launches of all of them.
//
//   order[m, i] = the example that is number i of the epoch: the keyed permutation of the member's seed
//                 and clock[2 m] if it is SHUFFLED, else i; with `rows` that row of its fold's list
//   mean[m]     = the mean of loss[m, 0 .. steps-1], each weighted by its examples: `batch`, but `left`
//                 behind the `whole` steps; bit for bit that of the host
//   score[m]    = the sum of correct[m, ..] / (examples * answers): NaN without answers
//
// For each member m = active[i], i < launched, that is not negative. members: rows of int32 words
// (persistent/members.cuh); clock: int32 [networks, 2]; rows: int32 [folds * count]; order: int32
// [networks, count], pitch ldorder; loss: float, correct: int32 [networks, steps]; mean, score: double
// [networks]. Null pointers: rows, correct, score.
// Launch: members along y, any number (grid-stride). Orders: one example a thread; means: a warp.
// Limit: latency, once an epoch.
#include "persistent/member_words.cuh"
#include "primitives/pdl.cuh"
#include "primitives/random.cuh"

extern "C" __global__ void member_orders(const int* __restrict__ active,
                                         const int* __restrict__ members, int ldmembers,
                                         const int* __restrict__ clock,
                                         const int* __restrict__ rows, int* __restrict__ order,
                                         int ldorder, int launched, int networks, int folds,
                                         int count, bool shuffled) {
  pdl_wait();
  pdl_trigger();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int nth = static_cast<int>(blockIdx.y); nth < launched;
       nth += static_cast<int>(gridDim.y)) {
    const int member = active[nth];
    if (member < 0 || i >= count) continue;
    const int* const words = members + static_cast<long long>(member) * ldmembers;
    int number = i;
    if (shuffled) {
      const Permutation place = permutation(seed_of_member(words), clock[2 * member], count);
      number = static_cast<int>(place(static_cast<unsigned int>(i)));
    }
    if (rows != nullptr) number = rows[static_cast<long long>(words[kFoldWord]) * count + number];
    order[static_cast<long long>(member) * ldorder + i] = number;
  }
}

extern "C" __global__ void __launch_bounds__(32)
    member_means(const int* __restrict__ active, const float* __restrict__ loss, int ldloss,
                 const int* __restrict__ correct, int ldcorrect, double* __restrict__ mean,
                 double* __restrict__ score, int launched, int networks, int steps, int batch,
                 int whole, int left, int answers) {
  pdl_wait();
  pdl_trigger();
  for (int nth = static_cast<int>(blockIdx.y); nth < launched;
       nth += static_cast<int>(gridDim.y)) {
    const int member = active[nth];
    if (member < 0) continue;
    const double found =
        mean_of_steps(loss + static_cast<long long>(member) * ldloss, steps, batch, whole, left);
    long long right = 0;
    for (int s = 0; correct != nullptr && s < steps; ++s) {
      right += correct[static_cast<long long>(member) * ldcorrect + s];
    }
    if (threadIdx.x != 0) continue;
    mean[member] = found;
    if (score != nullptr) {
      const double examples =
          static_cast<double>(whole) * batch + static_cast<double>(steps - whole) * left;
      score[member] = static_cast<double>(right) / (examples * static_cast<double>(answers));
    }
  }
}
