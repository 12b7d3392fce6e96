// Operands of clusters that share the GEMMs of a step that streams (streamed_clusters.cuh): what a block receives,
// and the partial sums that it sends.
#pragma once
#include "device/barriers.cuh"
#include "persistent/streamed.cuh"

template <typename C>
struct StreamedClusterOperands : Streamed<C> {
  using Base = Streamed<C>;
  using typename Base::Shape;
  using typename Base::Rule;
  using typename Base::Activation;
  using typename Base::Stamps;
  using Base::kTiles, Base::kPairs, Base::kSteps, Base::kWarps, Base::kGroups, Base::kBlocks, Base::kQuads;
  using Base::kInputs, Base::kOutputs, Base::kBias, Base::kPartFloats, Base::kWait;
  using Base::at, Base::bits, Base::low, Base::slopes, Base::updated;

  static constexpr int kPeers = C::kPeers;
  static constexpr int kShare = kSteps / kPeers;                    // steps of a gathered boundary
  static constexpr int kInputGroups = ceil_div(kGroups, kPeers);     // of inputs: two steps each
  static constexpr int kInputShare = 2 * kInputGroups;
  static constexpr int kUnits = kShare * kPairs;                    // two quads each: a step of a pair of tiles
  static constexpr int kUnitsEach = ceil_div(kUnits, kWarps);
  static constexpr int kAcross = kPairs * kPeers > 8 ? 2 : 1;        // owners whose sums a warp has
  static constexpr int kSplits = C::kSplits;                        // warps that share the steps of such sums
  static constexpr int kParts = kPeers * kSplits;
  static constexpr int kSecond = kOutputs > 8 ? ceil_div(kOutputs - 8, 2) : 0;  // pairs of outputs beyond eight
  static constexpr int kLogitFloats = kTiles * (128 + 32 * kSecond);  // that a block sends to each
  static_assert(kTiles % 2 == 0 && kSteps % kPeers == 0 && kPeers * kPairs <= kWarps && 2 * kTiles <= kWarps,
                "no such cluster");

  // Functions out of line get a copy of this object, so that it stays in registers.
  int cluster, q;          // this block's cluster, and its rank there
  unsigned int exchanges;  // of partial sums, completed by this block in this launch

  __device__ __forceinline__ explicit StreamedClusterOperands(int block)
      : cluster(block / kPeers), q(block % kPeers), exchanges(0) {}
  __device__ __forceinline__ int rank() const { return cluster * kPeers + q; }

  // -- partial sums --------------------------------------------------------------------------------------------
  __device__ __forceinline__ float* parts() const { return at((exchanges & 1u) != 0 ? C::kParts1 : C::kParts0); }
  __device__ __forceinline__ unsigned int barrier() const {
    return ptx::shared_address(at(C::kBarriers)) + (exchanges & 1u) * 8;
  }
  __device__ __forceinline__ void expect(int floats) const {
    if (threadIdx.x == 0) ptx::arrive_expecting(barrier(), floats * 4);
  }
  __device__ __forceinline__ void send(int to, int place, const float (&sum)[4]) const {
    ptx::send4_to_block(to, ptx::shared_address(parts() + place), make_float4(sum[0], sum[1], sum[2], sum[3]),
                        barrier());
  }
  __device__ __forceinline__ const float* wait() {
    const float* const found = parts();
    ptx::wait_for_remote(barrier(), exchanges >> 1 & 1);
    ++exchanges;
    return found;
  }

  // -- operands ------------------------------------------------------------------------------------------------
  static __device__ __forceinline__ unsigned int* staged(int step, int tile) {
    return Base::template at_as<unsigned int>(C::kStaged) + (step * kTiles + tile) * 128;
  }
  static __device__ __forceinline__ void store_fragments(int step, int tile, unsigned int a0, unsigned int a1,
                                                         unsigned int a2, unsigned int a3) {
    unsigned int* const to = staged(step, tile) + lane_index();
    to[0] = a0, to[32] = a1, to[64] = a2, to[96] = a3;
  }
  static __device__ __forceinline__ uint4* peers() { return Base::template at_as<uint4>(C::kOfPeers); }
  static __device__ __forceinline__ unsigned int transposed(float word) { return ptx::transpose_matrix(bits(word)); }
  // This lane's quad of what the cluster's blocks published.
  __device__ __forceinline__ const float4* quad_of_peers(const float4* gathered) const {
    return gathered + cluster * (kPeers * kQuads) + min(warp_index(), kPeers * kPairs - 1) * 32 + lane_index();
  }

  // Fragments of this block's share of a gathered boundary; with PEERS, also what the cluster's blocks published
  // of another one, as the right operand of a weight gradient.
  template <bool PEERS>
  __device__ __forceinline__ void receive_share(const float4* gathered, const float4* others, unsigned int bit) const {
    constexpr int many = 2 * kUnitsEach + PEERS;
    const int warp = warp_index(), lane = lane_index();
    float4 v[many];
    if constexpr (PEERS) others = quad_of_peers(others);
    const auto place = [&](int i) {
      if (i == 2 * kUnitsEach) return others;
      const int unit = min(warp + i / 2 * kWarps, kUnits - 1);
      return gathered + (((q * kShare + unit / kPairs) * 2 + i % 2) * kPairs + unit % kPairs) * 32 + lane;
    };
    receive_quads(v, place, bit);
    __syncthreads();  // what lay there has been read
#pragma unroll
    for (int i = 0; i < kUnitsEach; ++i) {
      const int unit = warp + i * kWarps;
      if (kUnits % kWarps != 0 && unit >= kUnits) break;
      const float4 &upper = v[2 * i], &lower = v[2 * i + 1];
      const int step = unit / kPairs, tile = unit % kPairs * 2;
      store_fragments(step, tile, bits(upper.x), bits(upper.y), bits(lower.x), bits(lower.y));
      store_fragments(step, tile + 1, bits(upper.z), bits(upper.w), bits(lower.z), bits(lower.w));
    }
    if constexpr (PEERS) store_peers(v[many - 1]);
    __syncthreads();
  }
  static __device__ __forceinline__ void store_peers(const float4& v) {
    if (warp_index() >= kPeers * kPairs) return;
    peers()[thread_index()] = make_uint4(transposed(v.x), transposed(v.y), transposed(v.z), transposed(v.w));
  }
  // All are loaded again where one is missing: ptxas copies each register that is loaded under a condition.
  template <int MANY, typename P>
  static __device__ __forceinline__ void receive_quads(float4 (&v)[MANY], P place, unsigned int bit) {
    int tries = 0;
    unsigned int missing;
#pragma unroll 1
    do {
      missing = 0;
      ptx::poll_again(tries, kWait);
#pragma unroll
      for (int i = 0; i < MANY; ++i) v[i] = ptx::load_flagged(place(i));
#pragma unroll
      for (int i = 0; i < MANY; ++i) ptx::check_flag_bit(missing, place(i), v[i], bit);
    } while ((missing & 1u) != 0);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MANY; ++i) v[i] = without_flag_bit(v[i]);
  }

  // The same of what was loaded ahead of its use, whether or not it was there.
  template <int MANY, typename P>
  static __device__ __forceinline__ void receive_rest(float4 (&v)[MANY], P place, unsigned int bit) {
    unsigned int missing = 0;
#pragma unroll
    for (int i = 0; i < MANY; ++i) ptx::check_flag_bit(missing, place(i), v[i], bit);
    if (__any_sync(kFullWarp, (missing & 1u) != 0)) {
      receive_quads(v, place, bit);
    } else {
#pragma unroll
      for (int i = 0; i < MANY; ++i) v[i] = without_flag_bit(v[i]);
    }
  }

  // The row of the fragments of a step and tile that a lane names to ptx::load_matrices: of what was received,
  // and of the inputs at `stage`.
  struct OfShare {
    __device__ __forceinline__ unsigned int operator()(int step, int tile) const {
      return ptx::shared_address(staged(step, tile) + lane_index() * 4);
    }
  };
  struct OfInputs {
    int stage;
    __device__ __forceinline__ unsigned int operator()(int step, int tile) const {
      const int half = lane_index() / 8 % 2, eight = step % 2 * 2 + lane_index() / 16;
      const int line = (step / 2 * kTiles + tile) * 2 + half;
      return ptx::shared_address(Base::template at_as<const uint4>(stage) + line * 32 +
                                 Base::staged_place(lane_index() % 8, eight));
    }
  };
  // The weights of an owner's features and a step: words of bfloat16, or tiles of floats.
  struct Words {
    const uint2* words;
    __device__ __forceinline__ uint2 operator()(int owner, int step) const {
      return words[(owner * kShare + step) * 32 + lane_index()];
    }
  };
  template <int STEPS>
  struct Tiles {
    const float4* weights;
    __device__ __forceinline__ uint2 operator()(int owner, int step) const {
      const float4 w = weights[(owner * STEPS + step) * 32 + lane_index()];
      return make_uint2(ptx::transpose_matrix(ptx::pack_bf16(w.x, w.y)),
                        ptx::transpose_matrix(ptx::pack_bf16(w.z, w.w)));
    }
  };

  // Tiles of weights that a warp updates, and sends: of one step and kOwners owners. body(owner, step).
  template <int STEPS>
  static constexpr int kSplit = smaller(kWarps / STEPS > 0 ? kWarps / STEPS : 1, kPeers);
  template <int STEPS>
  static constexpr int kOwners = ceil_div(kPeers, kSplit<STEPS>);

  // -- inputs --------------------------------------------------------------------------------------------------
  // Lines of 8 examples, [of a group of 32 inputs][tile][half].
  template <typename T>
  __device__ __forceinline__ void fetch_inputs(const T* images, int ld, int rows, int stage) const {
#pragma unroll
    for (int line = warp_index(); line < kInputShare * kTiles; line += kWarps) {
      const int example = Base::template at_as<const int>(rows)[line % (2 * kTiles) * 8 + lane_index() / 4];
      const int first = (q * kInputGroups + line / (2 * kTiles)) * 32 + lane_index() % 4 * 8;
      const T* const row = images + static_cast<long long>(example) * ld;
      const int place = line * 32 + Base::staged_place(lane_index() / 4, lane_index() % 4);
      ptx::copy_async<16>(ptx::shared_address(Base::template at_as<uint4>(stage) + place),
                          first < kInputs ? row + first : row, first < kInputs ? 16 : 0);
    }
    ptx::commit_copies();
  }
};
