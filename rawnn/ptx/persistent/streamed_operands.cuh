// Operands that stream (streamed.cuh): the fragments of gathered boundaries and of inputs.
//
// What is streamed: a C has
//   Shape, Rule, Activation                  of the kernel
//   kInputs, kHidden, kOutputs, kBias        the network
//   kStages                                  buffers of inputs in shared memory. With two, those of the next step
//                                            come during a step; with one, behind the first layer's update; with
//                                            none, inputs are loaded from L2 in both passes.
//   Stamps                                   NoStamps, or what stamps the parts of a phase in a traced kernel
#pragma once
#include "persistent/flag_bits.cuh"
#include "persistent/values.cuh"

struct NoStamps {
  __device__ __forceinline__ void operator()(int) const {}
};

template <typename C>
struct StreamedOperands {
  using Shape = typename C::Shape;
  using Rule = typename C::Rule;
  using Activation = typename C::Activation;
  using Stamps = typename C::Stamps;
  static constexpr int kInputs = C::kInputs, kHidden = C::kHidden, kOutputs = C::kOutputs, kStages = C::kStages;
  static constexpr bool kBias = C::kBias;
  static constexpr int kTiles = Shape::kColumns / 16;
  static constexpr int kPairs = ceil_div(kTiles, 2);
  static constexpr int kWarps = Shape::kThreads / 32;
  static constexpr int kBlocks = kHidden / 8;
  static constexpr int kSteps = kHidden / 16;               // of a gathered boundary
  static constexpr int kEach = ceil_div(kSteps, kWarps);   // of a warp
  static constexpr int kParts = ceil_div(kSteps, kEach);   // warps that have some
  static constexpr int kGroups = ceil_div(kInputs, 32);     // of inputs: two steps each
  static constexpr int kGroupsEach = ceil_div(kGroups, kWarps);
  static constexpr int kInputParts = ceil_div(kGroups, kGroupsEach);
  static constexpr int kQuads = kPairs * 32;               // that a block publishes
  static constexpr int kPartFloats = kTiles * 128;         // partial sums of a warp
  static constexpr int kWait = 3;
  static_assert(Shape::kColumns % 16 == 0 && kHidden % 16 == 0 && kInputs % 8 == 0 && kOutputs <= 16, "no such step");

  // Fragments of a step of 16 features: [its first or second eight][pair of tiles], as quads are published, of
  // which words 0 and 1 are those of the first tile. So a load brings operands of products of eight features
  // to the registers where they are used.
  using Words = unsigned int[2][kPairs][4];

  // A warp has the kEach steps from first_step() on. Those ahead of begin_step() belong to the warp before.
  static __device__ __forceinline__ int begin_step() { return warp_index() * kEach; }
  static __device__ __forceinline__ int first_step() { return min(begin_step(), kSteps - kEach); }
  static __device__ __forceinline__ bool has_steps() { return kParts == kWarps || warp_index() < kParts; }
  static __device__ __forceinline__ bool owns(int step, int begin) {
    return kSteps % kEach == 0 || step >= begin;
  }
  static __device__ __forceinline__ int first_input_step() { return warp_index() * kGroupsEach * 2; }

  static __device__ __forceinline__ unsigned int bits(float v) { return __float_as_uint(v); }
  static __device__ __forceinline__ float low(unsigned int w) { return __uint_as_float(w << 16); }
  static __device__ __forceinline__ float high(unsigned int w) { return __uint_as_float(w & 0xffff0000u); }
  static __device__ __forceinline__ unsigned int slopes(float first, float second, unsigned int saved) {
    return ptx::pack_bf16(Activation::backward(first, low(saved)), Activation::backward(second, high(saved)));
  }

  static __device__ __forceinline__ float* at(int place) { return ptx::dynamic_shared<float>() + place; }
  template <typename T>
  static __device__ __forceinline__ T* at_as(int place) { return reinterpret_cast<T*>(at(place)); }


  // Loads MANY quads, 32 quads one behind the other, until all have the flag bit: every EVERY-th, or the OTHERS.
  // All are loaded again where one is missing, and warps without steps load those of the last: ptxas copies each
  // register that is loaded under a condition.
  template <int EVERY = 1, bool OTHERS = false, int MANY>
  static __device__ __forceinline__ void receive_together(float4 (&v)[MANY], const float4* from, unsigned int bit) {
    int tries = 0;
    unsigned int missing;
#pragma unroll 1
    do {
      missing = 0;
      ptx::poll_again(tries, kWait);
#pragma unroll
      for (int i = 0; i < MANY; ++i) {
        if ((i % EVERY != 0) == OTHERS) v[i] = ptx::load_flagged(from + i * 32);
      }
#pragma unroll
      for (int i = 0; i < MANY; ++i) {
        if ((i % EVERY != 0) == OTHERS) ptx::check_flag_bit(missing, from, v[i], bit);
      }
    } while ((missing & 1u) != 0);
    __syncwarp();  // products need all lanes
  }

  // The fragments of this warp's steps of a gathered boundary. If they are many, one quad of each step is awaited
  // first: to load all of them in vain takes longer than the round trip.
  static constexpr int kMostAtOnce = 7;
  static __device__ __forceinline__ void receive(Words (&a)[kEach], const float4* gathered, unsigned int bit) {
    constexpr int quads = 2 * kPairs;
    float4 v[kEach * quads];
    const float4* const from = gathered + first_step() * (quads * 32) + lane_index();
    constexpr int every = kEach * quads > kMostAtOnce ? quads : 1;
    receive_together<every>(v, from, bit);
    if constexpr (every > 1) receive_together<every, true>(v, from, bit);
#pragma unroll
    for (int i = 0; i < kEach * quads; ++i) {
      unsigned int (&to)[4] = a[i / quads][i / kPairs % 2][i % kPairs];
      to[0] = bits(v[i].x), to[1] = bits(v[i].y), to[2] = bits(v[i].z), to[3] = bits(v[i].w) & ~1u;
    }
  }

  // The inputs of the examples `rows`. With kStages they come from `stage`, where this warp has put them
  // (fetch_inputs): 8 examples by 32 inputs, at places of staged_place. Without, 16 bytes a load: feature
  // 8t + 4s + q of a group of 32 is place 2t + q % 2 + q / 2 * 8 of its step s (place_of_input is the inverse).
  // TRANSPOSED, which takes a stage, they are the left operand of a weight gradient.
  template <bool TRANSPOSED, typename T>
  static __device__ __forceinline__ void load_inputs(Words (&a)[2 * kGroupsEach], const T* images, int ld, int rows,
                                                     int stage) {
    static_assert(kStages > 0 || !TRANSPOSED, "from a stage");
    if constexpr (kStages > 0) {
      ptx::wait_for_copies<0>();
      __syncwarp();
      load_staged<TRANSPOSED>(a, stage);
    } else {
      for_inputs(images, ld, rows, [&](int, int group, int tile, int half, const T* from, bool exists) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (exists) v = *reinterpret_cast<const uint4*>(from);
        const int word = tile % 2 * 2 + half;
        a[2 * group][0][tile / 2][word] = v.x, a[2 * group][1][tile / 2][word] = v.y;
        a[2 * group + 1][0][tile / 2][word] = v.z, a[2 * group + 1][1][tile / 2][word] = v.w;
      });
    }
  }
  // Where eight inputs of an example lie among 8 x 4 of them. Neither the copies of eight lanes, of two examples,
  // nor the rows of a matrix share banks.
  static __device__ __forceinline__ int staged_place(int example, int eight) {
    return example * 4 + (eight ^ example / 2);
  }
  template <bool TRANSPOSED>
  static __device__ __forceinline__ void load_staged(Words (&a)[2 * kGroupsEach], int stage) {
    if (first_input_step() >= 2 * kGroups) return;
    const int matrix = lane_index() / 8;
    const int half = TRANSPOSED ? matrix / 2 : matrix % 2, eight = TRANSPOSED ? matrix % 2 : matrix / 2;
    const uint4* const from = at_as<const uint4>(stage) + warp_index() * (kGroupsEach * kTiles * 64) + half * 32;
#pragma unroll
    for (int step = 0; step < 2 * kGroupsEach; ++step) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        unsigned int v[4];
        ptx::load_matrices<TRANSPOSED>(v, ptx::shared_address(from + (step / 2 * kTiles + tile) * 64 +
                                                             staged_place(lane_index() % 8, step % 2 * 2 + eight)));
        const int word = tile % 2 * 2;
        a[step][0][tile / 2][word] = v[0], a[step][0][tile / 2][word + 1] = v[1];
        a[step][1][tile / 2][word] = v[2], a[step][1][tile / 2][word + 1] = v[3];
      }
    }
  }
  template <typename T>
  static __device__ __forceinline__ void fetch_inputs(const T* images, int ld, int rows, int stage) {
    for_inputs(images, ld, rows, [=](int i, int, int, int, const T* from, bool exists) {
      const int place = i - lane_index() + staged_place(lane_index() / 4, lane_index() % 4);
      ptx::copy_async<16>(ptx::shared_address(at_as<uint4>(stage) + place), from, exists ? 16 : 0);
    });
    ptx::commit_copies();
  }
  // body(quad of a stage, group, tile, half, place of 8 inputs, whether they exist) for all of this lane.
  template <typename T, typename F>
  static __device__ __forceinline__ void for_inputs(const T* images, int ld, int rows, F body) {
    if (first_input_step() >= 2 * kGroups) return;
    const int first = first_input_step() * 16 + lane_index() % 4 * 8;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int example = at_as<const int>(rows)[tile * 16 + half * 8 + lane_index() / 4];
        const T* const row = images + static_cast<long long>(example) * ld;
#pragma unroll
        for (int group = 0; group < kGroupsEach; ++group) {
          const int i = (((warp_index() * kGroupsEach + group) * kTiles + tile) * 2 + half) * 32 + lane_index();
          const bool exists = first + group * 32 < kInputs;
          body(i, group, tile, half, exists ? row + first + group * 32 : row, exists);
        }
      }
    }
  }
  // One warp of each block loads a part of the next step's inputs, so that L2 has them: to one place, which nobody
  // reads.
  template <typename T>
  static __device__ __forceinline__ void load_ahead(const T* images, int ld, int rows, int copies, int rank) {
    constexpr int sectors = ceil_div(kInputs, 16);
    const int* const row = at_as<const int>(rows);
    ptx::nobody_reads(*at_as<uint4>(copies));
#pragma unroll 1
    for (int i = rank * 32 + lane_index(); i < Shape::kColumns * sectors; i += kBlocks * 32) {
      ptx::copy_async<16>(ptx::shared_address(at(copies)),
                          images + static_cast<long long>(row[i / sectors]) * ld + i % sectors * 16);
    }
    ptx::commit_copies();
  }
  static __device__ __forceinline__ int place_of_input(int step, int place) {
    if constexpr (kStages > 0) return step * 16 + place;
    return step / 2 * 32 + place % 8 / 2 * 8 + step % 2 * 4 + place / 8 * 2 + place % 2;
  }
};
