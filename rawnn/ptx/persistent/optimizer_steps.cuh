// Rules of optimizers (step_functors.cuh) as they are taken on the chip, and how the weights that they give are kept.
#pragma once
#include "persistent/block.cuh"
#include "primitives/rounding.cuh"
#include "optimizers/step_functors.cuh"

// An optimizer's rule as it is taken on the chip, where updates are bound by their instructions.
template <typename RULE>
struct OnChip {
  using Rule = RULE;
};

template <>
struct OnChip<Adam> {
  using Rule = ApproximateAdam;
};

// How new weights are kept. HOW says it for the tile (mt, nt) of a layer: with tile(mt, nt), which is
// called with each of the lane's four weights in the order of a fragment.
//
// As they are:
struct AsTheyAre {
  __device__ __forceinline__ AsTheyAre tile(int, int) const { return {}; }
  __device__ __forceinline__ float operator()(float weight, int) const { return weight; }
  // Whether the lowest bit of a weight is always 0.
  __device__ __forceinline__ bool spares_bits() const { return false; }
};

// Rounded to bfloat16 by chance: the lane's weights are the elements `first`, `first` + `inputs`, and
// those 8 behind these, each with the bits that (seed, stream, step, element) draws everywhere.
struct RoundedTile {
  bool rounds;
  unsigned long long seed;
  unsigned int stream;
  int step;
  unsigned int first, inputs;

  __device__ __forceinline__ bool spares_bits() const { return rounds; }
  __device__ __forceinline__ float operator()(float weight, int q) const {
    if (!rounds) return weight;
    const unsigned int element = first + (q & 1 ? inputs : 0u) + (q & 2 ? 8u : 0u);
    return to_float(stochastic_round_bf16(weight, rounding_bits(seed, stream, step, element)));
  }
};

// Of a layer with INPUTS inputs, of which this block holds a part from (out, in) on.
template <int INPUTS>
struct ByChance {
  unsigned long long seed;
  unsigned int stream;
  int step;
  int out, in;

  __device__ __forceinline__ RoundedTile tile(int mt, int nt) const {
    const int lane = lane_index();
    const int row = out + nt * 8 + lane % 4 * 2;
    const int column = in + mt * 16 + lane / 4;
    return {true, seed, stream, step,
            static_cast<unsigned int>(row) * INPUTS + static_cast<unsigned int>(column), INPUTS};
  }
  // The same of a layer's tile by its number; biases, which lie behind TILES of weights, are kept.
  template <int ACROSS, int TILES>
  __device__ __forceinline__ RoundedTile numbered(int number) const {
    RoundedTile found = tile(number / ACROSS, number % ACROSS);
    found.rounds = number < TILES;
    return found;
  }
};

// Of all layers, by the number of a tile: as they are.
struct AllAsTheyAre {
  __device__ __forceinline__ AsTheyAre operator()(int) const { return {}; }
};
