// A member's row in the table of settings (members.cuh), and the mean loss of its epoch.
#pragma once
#include "persistent/block.cuh"

constexpr int kFoldWord = 2;
constexpr int kSettingsWord = 8;

__device__ __forceinline__ unsigned long long seed_of_member(const int* words) {
  return *reinterpret_cast<const unsigned long long*>(words);
}

// The sum of term(0) .. term(count - 1) in the order of NumPy's sum of a contiguous float64 array: eight sums
// side by side for up to kLeaf terms, and of more terms the sum of two halves. So the mean loss of an epoch is
// the host's, bit for bit. All lanes of a warp call it and get the sum.
struct PairwiseSum {
  static constexpr int kLeaf = 128;
  static constexpr int kDepth = 26;  // of 2^31 terms

  template <typename TERM>
  static __device__ __forceinline__ double leaf(TERM term, int first, int count) {
    double sum = 0.0;
    int done = 0;
    if (count >= 8) {
      const int lane = lane_index() % 8;
      sum = term(first + lane);
#pragma unroll 1
      for (done = 8; done < count - count % 8; done += 8) sum += term(first + done + lane);
#pragma unroll
      for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
    }
#pragma unroll 1
    for (; done < count; ++done) sum += term(first + done);
    return sum;
  }

  template <typename TERM>
  static __device__ __forceinline__ double of(TERM term, int count) {
    struct Node {
      int first, count, summed;  // halves that are summed
      double half;
    };
    Node nodes[kDepth];
    nodes[0] = {0, count, 0, 0.0};
    int top = 0;
    double sum = 0.0;
#pragma unroll 1
    while (top >= 0) {
      Node& node = nodes[top];
      const int half = node.count / 2 - node.count / 2 % 8;
      if (node.count <= kLeaf) {
        sum = leaf(term, node.first, node.count);
        --top;
      } else if (node.summed == 0) {
        node.summed = 1;
        nodes[++top] = {node.first, half, 0, 0.0};
      } else if (node.summed == 1) {
        node.summed = 2, node.half = sum;
        nodes[++top] = {node.first + half, node.count - half, 0, 0.0};
      } else {
        sum = node.half + sum;
        --top;
      }
    }
    return sum;
  }
};

// The mean of the losses of an epoch's steps, each weighted by its examples: `batch`, but `left` in the step
// behind the `whole` ones. All lanes of a warp call it.
__device__ __forceinline__ double mean_of_steps(const float* loss, int steps, int batch, int whole,
                                                int left) {
  const auto term = [=](int step) {
    return static_cast<double>(loss[step]) * static_cast<double>(step < whole ? batch : left);
  };
  const double examples = static_cast<double>(static_cast<long long>(min(steps, whole)) * batch) +
                          (steps > whole ? static_cast<double>(left) : 0.0);
  return PairwiseSum::of(term, steps) / examples;
}
