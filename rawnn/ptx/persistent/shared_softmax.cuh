// Softmax cross-entropy over outputs that the warps of a block, or the blocks of a tensor-parallel group,
// share: z [outputs of this block, kPitch] of the examples becomes dz in place. No warp has all logits of an
// example. Each publishes the statistics of its own logits, four floats (Slice), and computes its gradients
// from the statistics of all: exp(z - m) / s with the maximum m and the sum s over all outputs (Milakov and
// Gimelshein, Online normalizer calculation for softmax, 2018). One exchange is enough: exponentials are
// taken relative to the local maximum first, and a factor corrects them.
//
// All combine the statistics by the same arithmetic in the same order.
#pragma once
#include "persistent/loss.cuh"
#include "persistent/exchange.cuh"

// Statistics of some logits of an example: the maximum, its first place among all outputs, and the sum of
// exp(z - maximum), which is NaN if a logit is. They are sent as four floats. Via L2 the flag bit takes a bit
// of the last, the sum.
struct Slice {
  Largest best;
  float total;

  __device__ __forceinline__ float4 quad() const {
    return make_float4(best.value, __int_as_float(best.place), 0.0f, total);
  }
};

__device__ __forceinline__ Largest largest_of(const float4& slice) {
  return {slice.x, __float_as_int(slice.y)};
}

// What exponentials are relative to: the maximum, or 0 if all logits are minus infinity.
__device__ __forceinline__ float base_of(float largest) {
  return largest == -infinity() ? 0.0f : largest;
}

// How a block shares its outputs: LANES lanes of each of WARPS warps share an example.
template <typename SHAPE, int ROWS, int LANES, int WARPS>
struct SliceTasks {
  using Of = Lanes<LANES>;
  static constexpr int kLanes = LANES * WARPS;
  static constexpr int kEach = ceil_div(ROWS, kLanes);
  static constexpr int kAtOnce = smaller(kEach, 12);
  static constexpr bool kKept = kEach <= kAtOnce;  // in registers
  static constexpr int kTasks = SHAPE::kColumns / Of::kExamples * WARPS;
  int of_warps, part, example;

  __device__ __forceinline__ explicit SliceTasks(int task)
      : of_warps(task % WARPS), part(of_warps * LANES + Of::part()),
        example(task / WARPS * Of::kExamples + Of::example()) {}
};

// The first half. z of the block's `count` outputs becomes exp(z - maximum of the warp's outputs), or the
// exponent, which is negative, where that is no normal number. `first` is the number of the block's first
// output. Each warp stores its statistics in `slices`, [WARPS][kColumns]. All lanes of an example call
// publish(example, their number, statistics).
template <typename SHAPE, int ROWS, int LANES, int WARPS, typename PUBLISH>
__device__ __forceinline__ void exponentials_of_slice(float* z, int first, int count, float4* slices,
                                                      PUBLISH publish) {
  using Tasks = SliceTasks<SHAPE, ROWS, LANES, WARPS>;
#pragma unroll 1
  for (int task = warp_index(); task < Tasks::kTasks; task += SHAPE::kThreads / 32) {
    const Tasks at(task);
    float* const mine = z + at.example;
    const auto value_of = [&](int i) {
      const int m = i * Tasks::kLanes + at.part;
      return m < count ? mine[m * SHAPE::kPitch] : -infinity();
    };
    // All loads are issued first: the compiler moves none ahead of a store.
    float values[Tasks::kKept ? Tasks::kEach : 1] = {};
    if constexpr (Tasks::kKept) {
#pragma unroll
      for (int i = 0; i < Tasks::kEach; ++i) values[i] = value_of(i);
    }
    Slice found = {{-infinity(), kNowhere}, 0.0f};
#pragma unroll Tasks::kAtOnce
    for (int i = 0; i < Tasks::kEach; ++i) {
      const float value = Tasks::kKept ? values[i] : value_of(i);
      if (value > found.best.value) found.best = {value, first + i * Tasks::kLanes + at.part};
    }
    found.best.template join_lanes<LANES>();
    const float base = base_of(found.best.value);
#pragma unroll Tasks::kAtOnce
    for (int i = 0; i < Tasks::kEach; ++i) {
      const int m = i * Tasks::kLanes + at.part;
      const float exponent = (Tasks::kKept ? values[i] : value_of(i)) - base;
      const float power = exp_below_zero(exponent);
      found.total += power;
      if (m < count) mine[m * SHAPE::kPitch] = power < kSmallestNormal ? exponent : power;
    }
    found.total = Tasks::Of::sum(found.total);
    const float4 slice = found.quad();
    publish(at.example, at.part, slice);
    if (Tasks::Of::part() == 0) slices[at.of_warps * SHAPE::kColumns + at.example] = slice;
    if constexpr (Tasks::kTasks <= SHAPE::kThreads / 32) break;
  }
}

// For warps that share an example within a block: they read `slices` after a barrier.
struct PublishNothing {
  __device__ __forceinline__ void operator()(int, int, const float4&) const {}
};

// Publishes the statistics of an example to all blocks of the group.
template <typename E, int LANES, typename T>
struct PublishStatistics {
  const T& transport;

  __device__ __forceinline__ void operator()(int example, int part, const float4& slice) const {
    constexpr int sent = T::Shape::kSent;
    if (example >= sent) return;
    transport.template publish_by_lanes<E, LANES>(part, (transport.rank * sent + example) * 4, slice);
  }
};

template <typename E, int LANES, typename T>
__device__ __forceinline__ PublishStatistics<E, LANES, T> publish_statistics(const T& transport) {
  return {transport};
}

// The second half: the exponentials of exponentials_of_slice become dz, from the `statistics` of all PARTS, of
// COLUMNS examples each. dz of examples from `present` on is 0. The block that has an example's label stores
// its tally, if it is one of the first `tallied` examples. The others store an empty one, unless all blocks
// have ONE place for it.
template <typename SHAPE, int OUTPUTS, int ROWS, int LANES, int WARPS, int PARTS, int COLUMNS,
          bool ONE, typename T, typename SCALING = UnscaledGradient>
__device__ __forceinline__ void loss_of_slice(const float* z, T* dz, int first, int count,
                                              const float4* slices, const float4* statistics,
                                              const int* labels, int present, float share,
                                              Tally* tallies, int tallied, SCALING scaled = {}) {
  using Tasks = SliceTasks<SHAPE, ROWS, LANES, WARPS>;
  constexpr int each = ceil_div(PARTS, LANES);
  [[maybe_unused]] constexpr int at_once = smaller(each, 4);
  __syncwarp();  // a warp reads its own entries of `slices`
#pragma unroll 1
  for (int task = warp_index(); task < Tasks::kTasks; task += SHAPE::kThreads / 32) {
    const Tasks at(task);
    const bool there = at.example < present;
    const int label = there ? labels[at.example] : -1;
    const float* const mine = z + at.example;
    float powers[Tasks::kKept ? Tasks::kEach : 1] = {};  // loaded ahead of the statistics
    if constexpr (Tasks::kKept) {
#pragma unroll
      for (int i = 0; i < Tasks::kEach; ++i) {
        const int m = i * Tasks::kLanes + at.part;
        powers[i] = m < count ? mine[m * SHAPE::kPitch] : 0.0f;
      }
    }
    const auto slice_of = [=](int i) {
      const int from = i * LANES + Tasks::Of::part();
      const bool published = from < PARTS && at.example < COLUMNS;
      return published ? statistics[from * COLUMNS + at.example]
                       : Slice{{-infinity(), kNowhere}, 0.0f}.quad();
    };
    Largest best = {-infinity(), kNowhere};
#pragma unroll at_once
    for (int i = 0; i < each; ++i) {
      const Largest other = largest_of(slice_of(i));
      best.join(other.value, other.place);
    }
    best.template join_lanes<LANES>();
    const float base = base_of(best.value);
    float total = 0.0f;
#pragma unroll at_once
    for (int i = 0; i < each; ++i) {
      const float4 slice = slice_of(i);
      total += slice.w * exp_below_zero(slice.x - base);
    }
    total = Tasks::Of::sum(total);
    if (!(total > 0.0f)) best.place = 0;  // all probabilities are NaN: the first maximum is at 0
    const float own = slices[at.of_warps * SHAPE::kColumns + at.example].x;
    const float factor = exp_below_zero(own - base) * ptx::approximate_inverse(total);
    float labelled = not_a_number(), kept = 1.0f;
#pragma unroll Tasks::kAtOnce
    for (int i = 0; i < Tasks::kEach; ++i) {
      const int m = i * Tasks::kLanes + at.part;
      if (m < count) {
        const float power = Tasks::kKept ? powers[i] : mine[m * SHAPE::kPitch];
        const float probability = fmaxf(power, 0.0f) * factor;
        const bool right = first + m == label;
        if (right) labelled = probability, kept = power;
        const float slope = (probability - (right ? 1.0f : 0.0f)) * share;
        store_one<SHAPE>(dz + m * SHAPE::kPitch + at.example, there ? scaled(slope) : 0.0f);
      }
    }
    // The first block reports a NaN loss for a label out of range.
    const int place = label - first;
    const bool here = place >= 0 && place < count;
    const bool none = first == 0 && (label < 0 || label >= OUTPUTS);
    const bool stores = at.example < tallied && (!ONE || here || none);
    if (stores && at.part == (here ? place % Tasks::kLanes : 0)) {
      if (labelled < kSmallestNormal) {
        labelled = (kept < 0.0f ? kept : logf(kept)) + (own - base) - logf(total);
      }
      const Tally seen = {labelled, best.place == label ? 1 : 0};
      tallies[at.example] = there && (here || none) ? seen : kAbsent;
    }
    if constexpr (Tasks::kTasks <= SHAPE::kThreads / 32) break;
  }
}
