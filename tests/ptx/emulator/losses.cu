// What blocks left of each step's loss, added up by the block that comes last (persistent/loss.cuh), as a kernel
// of many steps ends: in several rounds, through the shared memory where it says which block that is.
#include "persistent/loss.cuh"

struct Few {
  static constexpr int kThreads = 64;
};
constexpr int kParts = 24;  // eight of them a block's
constexpr int kRoom = 2 * (kParts | 1) * 8;

__global__ void add_up(const float* losses, const int* hits, float2* tally, unsigned int* ticket,
                       float* loss, int* right, int steps) {
  float* const shared = ptx::dynamic_shared<float>();
  int* const last = reinterpret_cast<int*>(shared);
  for (int i = thread_index(); i < steps * 8; i += Few::kThreads) {
    const int at = i / 8 * kParts + static_cast<int>(blockIdx.x) * 8 + i % 8;
    tally[at] = make_float2(losses[at], __int_as_float(hits[at]));
  }
  __syncthreads();
  take_ticket<Few>(ticket, last);
  __syncthreads();
  if (*last != 0) {
    sum_parts<Few, kParts, kRoom>(tally, shared, steps, [=](int step, const Tally& total) {
      loss[step] = total.loss, right[step] = total.right;
    });
  }
}
