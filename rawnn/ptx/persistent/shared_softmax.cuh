// Softmax cross-entropy of outputs that warps, or the blocks of a group, share: z [outputs of this block,
// kPitch] of the examples becomes dz in place. Nobody has all logits. Each says of an example what its own
// are in sum, four floats (Slice), and has from what all say what it needs for the gradient of its own:
// exp(z - m) / s with the largest m and the sum s of all (Milakov and Gimelshein, Online normalizer
// calculation for softmax, 2018, who share a row so). Between the two there is one meeting: powers are
// taken relative to what each knows by itself, and put right by a factor.
//
// What is said is joined by the same arithmetic everywhere, in the same order each time.
#pragma once
#include "persistent/loss.cuh"
#include "onchip_transport.cuh"

// Of some logits of an example: the largest, the first place among all outputs that it has, and the sum
// of all exp(z - largest), which is a NaN where one of them is. It travels as four floats; through the
// L2 cache the last, the sum, loses a bit.
struct Slice {
  Largest best;
  float total;

  __device__ __forceinline__ float4 told() const {
    return make_float4(best.value, __int_as_float(best.place), 0.0f, total);
  }
};

__device__ __forceinline__ Largest largest_of(const float4& slice) {
  return {slice.x, __float_as_int(slice.y)};
}

// What powers are taken relative to: the largest, or 0 where there is nothing but minus infinities.
__device__ __forceinline__ float base_of(float largest) {
  return largest == -infinity() ? 0.0f : largest;
}

// How a block's outputs are shared: by LANES of a warp, and of WARPS.
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

// z of the block's `count` outputs, the first of which is number `first` of all, becomes exp(z - largest)
// of each warp's part of them, which leaves what that is in sum in `slices`, [WARPS][kColumns]. All lanes
// of an example call tell(example, their number, slice), where others are to know.
template <typename SHAPE, int ROWS, int LANES, int WARPS, typename TELL>
__device__ __forceinline__ void powers_of_slice(float* z, int first, int count, float4* slices,
                                                TELL tell) {
  using Tasks = SliceTasks<SHAPE, ROWS, LANES, WARPS>;
#pragma unroll 1
  for (int task = warp_index(); task < Tasks::kTasks; task += SHAPE::kThreads / 32) {
    const Tasks at(task);
    float* const mine = z + at.example;
    const auto value_of = [&](int i) {
      const int m = i * Tasks::kLanes + at.part;
      return m < count ? mine[m * SHAPE::kPitch] : -infinity();
    };
    // Asked for at once: behind a store the compiler loads no next one.
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
      const float power = exp_below_zero((Tasks::kKept ? values[i] : value_of(i)) - base);
      found.total += power;
      if (m < count) mine[m * SHAPE::kPitch] = power;
    }
    found.total = Tasks::Of::sum(found.total);
    const float4 slice = found.told();
    tell(at.example, at.part, slice);
    if (Tasks::Of::part() == 0) slices[at.of_warps * SHAPE::kColumns + at.example] = slice;
    if constexpr (Tasks::kTasks <= SHAPE::kThreads / 32) break;
  }
}

// Nobody else is to know: warps read what they tell each other behind a barrier.
struct TellNobody {
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

// From what all PARTS told, of COLUMNS examples each: the powers of powers_of_slice become dz, which of
// examples from `present` on is 0. The block that has an example's label leaves its tally, if it is one of
// the first `tallied`; others leave an empty one, unless all blocks have ONE place for it.
template <typename SHAPE, int OUTPUTS, int ROWS, int LANES, int WARPS, int PARTS, int COLUMNS,
          bool ONE, typename T, typename MADE = AsItIs>
__device__ __forceinline__ void loss_of_slice(const float* z, T* dz, int first, int count,
                                              const float4* slices, const float4* told,
                                              const int* labels, int present, float share,
                                              Tally* tallies, int tallied, MADE made = {}) {
  using Tasks = SliceTasks<SHAPE, ROWS, LANES, WARPS>;
  constexpr int each = ceil_div(PARTS, LANES);
  [[maybe_unused]] constexpr int at_once = smaller(each, 4);
  __syncwarp();  // a warp reads what it left in `slices`
#pragma unroll 1
  for (int task = warp_index(); task < Tasks::kTasks; task += SHAPE::kThreads / 32) {
    const Tasks at(task);
    const bool there = at.example < present;
    const int label = there ? labels[at.example] : -1;
    const float* const mine = z + at.example;
    float powers[Tasks::kKept ? Tasks::kEach : 1] = {};  // asked for at once, and beside what was told
    if constexpr (Tasks::kKept) {
#pragma unroll
      for (int i = 0; i < Tasks::kEach; ++i) {
        const int m = i * Tasks::kLanes + at.part;
        powers[i] = m < count ? mine[m * SHAPE::kPitch] : 0.0f;
      }
    }
    const auto slice_of = [=](int i) {
      const int from = i * LANES + Tasks::Of::part();
      const bool said = from < PARTS && at.example < COLUMNS;
      return said ? told[from * COLUMNS + at.example]
                  : Slice{{-infinity(), kNowhere}, 0.0f}.told();
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
    float labelled = not_a_number();
#pragma unroll Tasks::kAtOnce
    for (int i = 0; i < Tasks::kEach; ++i) {
      const int m = i * Tasks::kLanes + at.part;
      if (m < count) {
        const float probability = (Tasks::kKept ? powers[i] : mine[m * SHAPE::kPitch]) * factor;
        const bool right = first + m == label;
        if (right) labelled = probability;
        const float slope = (probability - (right ? 1.0f : 0.0f)) * share;
        store_one<SHAPE>(dz + m * SHAPE::kPitch + at.example, there ? made(slope) : 0.0f);
      }
    }
    // Of a label that is none the first block says that the loss is a NaN.
    const int place = label - first;
    const bool here = place >= 0 && place < count;
    const bool none = first == 0 && (label < 0 || label >= OUTPUTS);
    const bool tells = at.example < tallied && (!ONE || here || none);
    if (tells && at.part == (here ? place % Tasks::kLanes : 0)) {
      const Tally seen = {labelled, best.place == label ? 1 : 0};
      tallies[at.example] = there && (here || none) ? seen : kAbsent;
    }
    if constexpr (Tasks::kTasks <= SHAPE::kThreads / 32) break;
  }
}
