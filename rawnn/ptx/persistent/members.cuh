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
#include "persistent/member_words.cuh"
#include "primitives/random.cuh"

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
