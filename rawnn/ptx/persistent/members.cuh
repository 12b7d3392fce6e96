// Many networks at once: each tensor-parallel group of a launch trains, or measures, one member. What members
// share are the data set and the shape of the network; each has a row in a table of settings:
//
//   words 0, 1  its seed                         word 2   its fold: which list of rows, which normalisation
//   words 3 .. 6  learning rate, value, period and warm-up of its schedule (schedule.cu)
//   from word 8 on  the numbers among the settings of its optimizer, as double
//
// Its tensors are row `member` of stacks of all members' tensors. The host lists the members that are active.
#pragma once
#include "elementwise/clock.cuh"
#include "persistent/block.cuh"
#include "primitives/random.cuh"

constexpr int kFoldWord = 2;
constexpr int kSettingsWord = 8;

__device__ __forceinline__ unsigned long long seed_of_member(const int* words) {
  return *reinterpret_cast<const unsigned long long*>(words);
}

// The examples of an epoch in the order in which the member sees them: those of its list of rows, or all, in a
// new order for each epoch if they are SHUFFLED. Each is computed where it is needed, so that no order lies in
// memory. The permutation lies in shared memory.
template <bool SHUFFLED, bool LISTED>
struct MemberOrder {
  const Permutation* place;
  const int* rows;

  __device__ __forceinline__ int number(long long index) const {
    const unsigned int at = static_cast<unsigned int>(index);
    if constexpr (SHUFFLED) return static_cast<int>((*place)(at));
    return static_cast<int>(at);
  }
  __device__ __forceinline__ int operator()(long long index) const {
    if constexpr (LISTED) return rows[number(index)];
    return number(index);
  }
};

// As those of persistent/input.cuh, whose orders lie in memory.
template <typename SHAPE, int FREE, int START, bool SHUFFLED, bool LISTED>
__device__ __forceinline__ void fetch_order(int* to, const MemberOrder<SHUFFLED, LISTED>& order,
                                            long long first, int count) {
#pragma unroll 1
  for (int i = copy_index<SHAPE, FREE, START>(); i < count; i += SHAPE::kThreads - FREE) {
    if constexpr (LISTED) {
      ptx::copy_async<4>(ptx::shared_address(to + i), order.rows + order.number(first + i));
    } else {
      to[i] = order.number(first + i);
    }
  }
}

template <typename SHAPE, bool SHUFFLED, bool LISTED>
__device__ __forceinline__ void first_orders(int* to, const MemberOrder<SHUFFLED, LISTED>& order,
                                             long long first, int count, long long second,
                                             int second_count) {
#pragma unroll 1
  for (int i = thread_index(); i < SHAPE::kColumns; i += SHAPE::kThreads) {
    to[i] = i < count ? order(first + i) : 0;
    to[SHAPE::kColumns + i] = i < second_count ? order(second + i) : 0;
  }
}

// The same for MICRO micro-batches from number `first` on, whose places are a ring of MICRO + 1. Walking to a
// place of the permutation takes some 230 cycles, often several times. So a lane goes on to its next example as
// soon as it has one, and does not wait for the others.
template <typename SHAPE, int FREE, int MICRO, bool LISTED, typename FIRST, typename PRESENT>
__device__ __forceinline__ void order_ahead(int* ring, const MemberOrder<true, LISTED>& order, int first,
                                            int count, FIRST first_of, PRESENT present_in) {
  constexpr int threads = SHAPE::kThreads - FREE;
  constexpr int items = MICRO * SHAPE::kColumns;
  int item = static_cast<int>(thread_index()) - FREE - threads;
  unsigned int at = 0u;
  int* to = nullptr;
  bool walks = false;
#pragma unroll 1
  while (true) {
    if (!walks) {
      item += threads;
      if (item >= items) break;
      const int micro_batch = first + item / SHAPE::kColumns;
      const int row = item % SHAPE::kColumns;
      walks = micro_batch < count && row < present_in(micro_batch);
      at = static_cast<unsigned int>(first_of(micro_batch)) + row;
      to = ring + micro_batch % (MICRO + 1) * SHAPE::kColumns + row;
    }
    if (walks) {
      at = order.place->next(at);
      if (at < order.place->count) {
        walks = false;
        if constexpr (LISTED) {
          ptx::copy_async<4>(ptx::shared_address(to), order.rows + at);
        } else {
          *to = static_cast<int>(at);
        }
      }
    }
  }
  __syncwarp();
}

// What a member's examples come to in an evaluation.
struct Evaluated {
  double loss;
  int right;
};

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
