// The optimizer steps (step_functors.cuh) that the whole-step kernel uses, and how it rounds the new weights.
#pragma once
#include "persistent/block.cuh"
#include "primitives/rounding.cuh"
#include "optimizers/step_functors.cuh"

// The variant of an optimizer step that the whole-step kernel uses, where instructions limit the updates.
template <typename RULE>
struct OnChip {
  using Rule = RULE;
};

template <>
struct OnChip<Adam> {
  using Rule = ApproximateAdam;
};

// The flags of an optimizer step, and whether weights decay. Of an object in shared memory the compiler knows
// nothing, and computes the step in both ways: so what the kernel knows is set in each copy of it.
template <typename RULE>
struct Flags {
  template <typename... FLAGS>
  static __device__ __forceinline__ void set(RULE&, bool, FLAGS...) {}
};

template <>
struct Flags<Sgd> {
  static __device__ __forceinline__ void set(Sgd& rule, bool decays) { rule.decays = decays; }
};

template <>
struct Flags<Momentum> {
  static __device__ __forceinline__ void set(Momentum& rule, bool decays, bool nesterov) {
    rule.decays = decays, rule.nesterov = nesterov;
  }
};

template <>
struct Flags<ApproximateAdam> {
  static __device__ __forceinline__ void set(ApproximateAdam& rule, bool decays, bool decoupled) {
    rule.decays = decays, rule.decoupled = decoupled;
  }
};

// Rounding of new weights. tile(mt, nt) of a HOW gives the rounding of a tile of a layer, a function of each
// of the lane's four weights and of its number in the fragment.
//
// No rounding:
struct NoRounding {
  __device__ __forceinline__ NoRounding tile(int, int) const { return {}; }
  __device__ __forceinline__ float operator()(float weight, int) const { return weight; }
  // Whether the lowest bit of a weight is always 0.
  __device__ __forceinline__ bool has_spare_bits() const { return false; }
};

// Stochastic rounding to bfloat16. The lane's weights are the elements `first`, `first` + `inputs`, and those
// 8 after these. The random bits of each are a function of (seed, stream, step, element), as in all other
// kernels.
struct StochasticTile {
  bool rounds;
  unsigned long long seed;
  unsigned int stream;
  int step;
  unsigned int first, inputs;

  __device__ __forceinline__ bool has_spare_bits() const { return rounds; }
  __device__ __forceinline__ float operator()(float weight, int q) const {
    if (!rounds) return weight;
    const unsigned int element = first + (q & 1 ? inputs : 0u) + (q & 2 ? 8u : 0u);
    return to_float(stochastic_round_bf16(weight, rounding_bits(seed, stream, step, element)));
  }
};

// Stochastic rounding of a layer with INPUTS inputs, of which this block holds a shard from (out, in) on.
template <int INPUTS>
struct StochasticRounding {
  unsigned long long seed;
  unsigned int stream;
  int step;
  int out, in;

  __device__ __forceinline__ StochasticTile tile(int mt, int nt) const {
    const int lane = lane_index();
    const int row = out + nt * 8 + lane % 4 * 2;
    const int column = in + mt * 16 + lane / 4;
    return {true, seed, stream, step,
            static_cast<unsigned int>(row) * INPUTS + static_cast<unsigned int>(column), INPUTS};
  }
  // The same for a layer's tile by its number. Tiles of biases follow TILES tiles of weights, and are not
  // rounded.
  template <int ACROSS, int TILES>
  __device__ __forceinline__ StochasticTile numbered(int number) const {
    StochasticTile found = tile(number / ACROSS, number % ACROSS);
    found.rounds = number < TILES;
    return found;
  }
};

// No rounding, for tiles of all layers by their number.
struct NoRoundingOfTiles {
  __device__ __forceinline__ NoRounding operator()(int) const { return {}; }
};
