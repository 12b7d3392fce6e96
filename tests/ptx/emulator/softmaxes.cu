// The softmax losses of generated kernels (persistent/loss.cuh, persistent/shared_softmax.cuh) by themselves. A
// thread block takes the part of each of BLOCKS blocks, one after the other.
#include "persistent/shared_softmax.cuh"

struct Small {
  static constexpr int kThreads = 128;
  static constexpr int kColumns = 16;
  static constexpr int kPitch = 20;
  static constexpr int kPrecision = kFloat32;
};

// `dz` [examples, OUTPUTS] of `logits`. `probability` and `right` [BLOCKS, examples] are the tallies of each
// block, of which all have ONE place in the first row. WHOLE: each block has all logits, and its part of dz.
template <int OUTPUTS, int LANES, int WARPS, int BLOCKS, bool ONE, bool WHOLE>
__global__ void softmaxes(const float* logits, const int* labels, float* dz, float* probability, int* right,
                          int present, float share, int tallied) {
  constexpr int rows = ceil_div(OUTPUTS, BLOCKS);
  constexpr int columns = Small::kColumns;
  float* const z = ptx::dynamic_shared<float>();
  float* const slopes = WHOLE ? z + OUTPUTS * Small::kPitch : z;
  float4* const slices = reinterpret_cast<float4*>(slopes + OUTPUTS * Small::kPitch);
  float4* const statistics = slices + BLOCKS * WARPS * columns;
  Tally* const tallies = reinterpret_cast<Tally*>(statistics + BLOCKS * columns);
  for (int i = thread_index(); i < OUTPUTS * columns; i += Small::kThreads) {
    const int at = i / columns * Small::kPitch + i % columns;
    z[at] = logits[i % columns * OUTPUTS + i / columns];
    if constexpr (WHOLE) slopes[at] = 0.5f;  // where a logit behind the last would be
  }
  for (int i = thread_index(); i < BLOCKS * columns; i += Small::kThreads) {
    tallies[i] = {probability[i], right[i]};
  }
  __syncthreads();
  if constexpr (!WHOLE) {
    for (int block = 0; block < BLOCKS; ++block) {
      const int first = block * rows;
      const auto publish = [=](int example, int part, const float4& slice) {
        if (part == 0) statistics[block * columns + example] = slice;
      };
      exponentials_of_slice<Small, rows, LANES, WARPS>(
          z + first * Small::kPitch, first, max(0, min(rows, OUTPUTS - first)),
          slices + block * WARPS * columns, publish);
    }
  }
  __syncthreads();
  for (int block = 0; block < BLOCKS; ++block) {
    const int first = block * rows;
    const int count = max(0, min(rows, OUTPUTS - first));
    float* const mine = slopes + first * Small::kPitch;
    Tally* const own = tallies + (ONE ? 0 : block * columns);
    if constexpr (WHOLE) {
      softmax_loss<Small, OUTPUTS, LANES>(z, mine, first, count, labels, present, share, own,
                                          ONE && block > 0 ? 0 : tallied);
    } else {
      loss_of_slice<Small, OUTPUTS, rows, LANES, WARPS, BLOCKS == 1 ? WARPS : BLOCKS, columns, ONE>(
          mine, mine, first, count, slices + block * WARPS * columns,
          BLOCKS == 1 ? slices : statistics, labels, present, share, own, tallied);
    }
  }
  __syncthreads();
  for (int i = thread_index(); i < OUTPUTS * columns; i += Small::kThreads) {
    dz[i % columns * OUTPUTS + i / columns] = slopes[i / columns * Small::kPitch + i % columns];
  }
  for (int i = thread_index(); i < BLOCKS * columns; i += Small::kThreads) {
    probability[i] = tallies[i].loss, right[i] = tallies[i].right;
  }
}
