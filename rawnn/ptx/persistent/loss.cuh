// The loss of a step in shared memory: z [outputs, kPitch] of the examples becomes dz, and each thread counts
// loss and correct answers in a Tally. The gradient of examples from `present` on is 0. `scaled` maps a
// gradient to what is stored: itself (UnscaledGradient), or the gradient times the loss scale
// (loss_scale.cuh).
#pragma once
#include "losses/losses.cuh"
#include "losses/metrics.cuh"
#include "persistent/epilogue.cuh"
#include "persistent/values.cuh"

struct UnscaledGradient {
  __device__ __forceinline__ float operator()(float gradient) const { return gradient; }
};

// The tally of an example that does not exist, or whose label belongs to another block.
constexpr Tally kAbsent = {1.0f, 0};

// How LANES lanes of a warp share an example. Four lanes read rows of kPitch without bank conflicts. More
// lanes have fewer outputs each, and more shuffles.
template <int LANES>
struct Lanes {
  static constexpr int kExamples = 32 / LANES;  // of a warp

  static __device__ __forceinline__ int example() { return lane_index() % kExamples; }
  static __device__ __forceinline__ int part() { return lane_index() / kExamples; }
  // The mask of the lanes that share this lane's example.
  static __device__ __forceinline__ unsigned int all() {
    unsigned int first = 0;
#pragma unroll
    for (int lane = 0; lane < 32; lane += kExamples) first |= 1u << lane;
    return first << example();
  }
  // The sum over all lanes of an example, in the same order in each lane.
  static __device__ __forceinline__ float sum(float value) {
#pragma unroll
    for (int step = kExamples; step < 32; step *= 2) {
      value += __shfl_xor_sync(kFullWarp, value, step);
    }
    return value;
  }
};

constexpr int kNowhere = 0x7fffffff;  // the place of the largest of no values

// The maximum of some values, and its first place.
struct Largest {
  float value;
  int place;
  __device__ __forceinline__ void join(float other, int at) {
    if (other > value || (other == value && at < place)) value = other, place = at;
  }
  // Over all LANES of an example.
  template <int LANES>
  __device__ __forceinline__ void join_lanes() {
#pragma unroll
    for (int step = Lanes<LANES>::kExamples; step < 32; step *= 2) {
      join(__shfl_xor_sync(kFullWarp, value, step), __shfl_xor_sync(kFullWarp, place, step));
    }
  }
};

// Softmax cross-entropy with labels: dz = (p - onehot(y)) * share. LANES lanes of a warp share an example.
// (If several warps share one: shared_softmax.cuh.) `logits` has all OUTPUTS rows. `dz` has the `count` rows
// from `first` on; it may be the same memory if first is 0. Each of the first `tallied` examples stores a
// tally, with the probability of its label or its logarithm (probability_or_log) in place of the loss
// (add_tallies, sum_kept).
//
// Limit: a chain of latencies, most of them shuffles.
template <typename SHAPE, int OUTPUTS, int LANES, typename T, typename SCALING = UnscaledGradient>
__device__ __forceinline__ void softmax_loss(const float* logits, T* dz, int first, int count,
                                             const int* labels, int present, float share,
                                             Tally* tallies, int tallied, SCALING scaled = {}) {
  using Of = Lanes<LANES>;
  constexpr int each = ceil_div(OUTPUTS, LANES);
  constexpr bool kept = each <= 12;  // in registers
  [[maybe_unused]] constexpr int at_once = kept ? each : 4;
  constexpr int tasks = SHAPE::kColumns / Of::kExamples;
  const int part = Of::part();
#pragma unroll 1
  for (int task = warp_index(); task < tasks; task += SHAPE::kThreads / 32) {
    const int example = task * Of::kExamples + Of::example();
    const bool there = example < present;
    const int label = there ? labels[example] : -1;
    const float* const z = logits + example;
    float values[kept ? each : 1] = {};
    const auto value_of = [&](int i) {
      const int m = i * LANES + part;
      if constexpr (kept) return values[i];
      return m < OUTPUTS ? z[m * SHAPE::kPitch] : -infinity();
    };
    if constexpr (kept) {
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int m = i * LANES + part;
        values[i] = m < OUTPUTS ? z[m * SHAPE::kPitch] : -infinity();
      }
    }
    float largest = -infinity();
#pragma unroll at_once
    for (int i = 0; i < each; ++i) largest = fmaxf(largest, value_of(i));
#pragma unroll
    for (int step = Of::kExamples; step < 32; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
    }
    // The logit of the label, and whether the maximum occurs before it.
    const bool is = label >= 0 && label < OUTPUTS;
    const float of_label = is ? z[label * SHAPE::kPitch] : 0.0f;
    bool ahead = false;
    float total = 0.0f;  // a NaN where one is among the values
#pragma unroll at_once
    for (int i = 0; i < each; ++i) {
      const float value = value_of(i);
      ahead |= value == largest && i * LANES < label - part;
      const float power = exp_below_zero(value - largest);
      if constexpr (kept) values[i] = power;
      total += power;
    }
    total = Of::sum(total);
    const unsigned int all_ahead = __ballot_sync(kFullWarp, ahead);
    const float inverse = ptx::approximate_inverse(total);  // of 1 to OUTPUTS
    __syncwarp();
#pragma unroll at_once
    for (int i = 0; i < each; ++i) {
      const int m = i * LANES + part;
      const int row = m - first;
      if (m < OUTPUTS && row >= 0 && row < count) {
        const float power = kept ? value_of(i) : exp_below_zero(value_of(i) - largest);
        const float slope = (power * inverse - (m == label ? 1.0f : 0.0f)) * share;
        store_one<SHAPE>(dz + row * SHAPE::kPitch + example, there ? scaled(slope) : 0.0f);
      }
    }
    if (part == 0 && example < tallied) {
      const float power = is ? exp_below_zero(of_label - largest) : not_a_number();
      const bool first_largest = of_label == largest && (all_ahead & Of::all()) == 0u;
      // Where all probabilities are NaN the first maximum is at 0.
      const bool right = total != total ? label == 0 : is && first_largest;
      const float seen_as = probability_or_log(power * inverse, largest - of_label, total);
      const Tally seen = {seen_as, right ? 1 : 0};
      tallies[example] = there ? seen : kAbsent;
    }
    if constexpr (tasks <= SHAPE::kThreads / 32) break;
  }
}

// One warp sums COUNT tallies, in the same order each time; the sum is valid in its first lane. If the
// tallies hold PROBABILITIES, this warp takes their logarithms while the other warps go on.
template <int COUNT, bool PROBABILITIES>
__device__ __forceinline__ Tally add_tallies(const Tally* tallies) {
  Tally total = {0.0f, 0};
  constexpr int rounds = ceil_div(COUNT, 32);
#pragma unroll smaller(rounds, 16)
  for (int round = 0; round < rounds; ++round) {
    const int i = round * 32 + lane_index();
    if (COUNT % 32 == 0 || i < COUNT) {
      const Tally one = tallies[i];
      total.loss += PROBABILITIES ? negative_log(one.loss) : one.loss;
      total.right += one.right;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    total.loss += __shfl_down_sync(kFullWarp, total.loss, step);
    total.right += __shfl_down_sync(kFullWarp, total.right, step);
  }
  return total;
}

// Sums the tallies of `parts` examples for each step. A warp has several steps, whose loads overlap:
// report(step, sum).
template <typename SHAPE, typename REPORT>
__device__ __forceinline__ void sum_kept(const float2* left, int parts, int steps, REPORT report) {
  constexpr int once = 4;
  const int lane = lane_index();
#pragma unroll 1
  for (int s = warp_index() * once; s < steps; s += SHAPE::kThreads / 32 * once) {
    Tally total[once] = {};
#pragma unroll 1
    for (int first = 0; first < parts; first += 32) {
      float2 found[once];
#pragma unroll
      for (int i = 0; i < once; ++i) {
        const bool there = s + i < steps && first + lane < parts;
        found[i] = make_float2(1.0f, 0.0f);
        if (there) found[i] = __ldcg(left + static_cast<long long>(s + i) * parts + first + lane);
      }
#pragma unroll
      for (int i = 0; i < once; ++i) {
        total[i].loss += negative_log(found[i].x), total[i].right += __float_as_int(found[i].y);
      }
    }
#pragma unroll
    for (int i = 0; i < once; ++i) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        total[i].loss += __shfl_down_sync(kFullWarp, total[i].loss, step);
        total[i].right += __shfl_down_sync(kFullWarp, total[i].right, step);
      }
      if (lane == 0 && s + i < steps) report(s + i, total[i]);
    }
  }
}

// After the steps of a launch the last thread of each block takes a ticket. It stores in `last`, a word of
// shared memory, whether this block is the last one, which then sees the stores of all blocks.
template <typename SHAPE>
__device__ __forceinline__ void take_ticket(unsigned int* ticket, int* last) {
  if (thread_index() == SHAPE::kThreads - 1) {
    __threadfence();
    *last = atomicAdd(ticket, 1u) == gridDim.x - 1u ? 1 : 0;
    __threadfence();
  }
}

// Sums the tallies of PARTS blocks or groups for each step, in their order, one thread a step: report(step,
// sum). Many tallies are staged in shared memory, of which SPARE floats are no longer in use: all threads load
// them in the order of their addresses.
template <typename SHAPE, int PARTS, int SPARE, typename REPORT>
__device__ __forceinline__ void sum_parts(const float2* left, float* shared, int steps,
                                          REPORT report) {
  constexpr int once = 8;  // loads that a thread has under way
  constexpr int pitch = PARTS | 1;
  constexpr int rows = smaller(SPARE / (2 * pitch), SHAPE::kThreads);
  if constexpr (PARTS > 2 * once && rows >= 8) {
    float2* const staged = reinterpret_cast<float2*>(shared);
    __syncthreads();  // all have read what else lies there
#pragma unroll 1
    for (int first = 0; first < steps; first += rows) {
      const int here = min(rows, steps - first);
      const float2* const from = left + static_cast<long long>(first) * PARTS;
#pragma unroll 1
      for (int i = thread_index(); i < here * PARTS; i += SHAPE::kThreads * once) {
        float2 found[once];
#pragma unroll
        for (int k = 0; k < once; ++k) {
          found[k] = __ldcg(from + min(i + k * SHAPE::kThreads, here * PARTS - 1));
        }
#pragma unroll
        for (int k = 0; k < once; ++k) {
          const int item = i + k * SHAPE::kThreads;
          if (item < here * PARTS) staged[item / PARTS * pitch + item % PARTS] = found[k];
        }
      }
      __syncthreads();
      if (thread_index() < here) {
        Tally total = {0.0f, 0};
#pragma unroll 8
        for (int part = 0; part < PARTS; ++part) {
          const float2 one = staged[thread_index() * pitch + part];
          total.loss += one.x, total.right += __float_as_int(one.y);
        }
        report(first + thread_index(), total);
      }
      __syncthreads();
    }
  } else {
#pragma unroll 1
    for (int s = thread_index(); s < steps; s += SHAPE::kThreads) {
      Tally total = {0.0f, 0};
      const float2* const of_step = left + static_cast<long long>(s) * PARTS;
#pragma unroll 1
      for (int first = 0; first < PARTS; first += once) {
        float2 found[once];
#pragma unroll
        for (int i = 0; i < once; ++i) found[i] = __ldcg(of_step + min(first + i, PARTS - 1));
#pragma unroll
        for (int i = 0; i < once; ++i) {
          if (first + i < PARTS) total.loss += found[i].x, total.right += __float_as_int(found[i].y);
        }
      }
      report(s, total);
    }
  }
}
