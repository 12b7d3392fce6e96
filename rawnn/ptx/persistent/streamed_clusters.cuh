// A step whose operands stream (streamed.cuh), where clusters of kPeers blocks share the inner dimension of each
// GEMM. A block receives its share of a gathered boundary, 1 / kPeers of its features, and multiplies it for all
// features that the cluster's blocks own. The partial sums go to the owners through distributed shared memory.
// So a boundary leaves L2 once for each cluster, not once for each block.
//
// Weights. Block q of a cluster has the weights between its share of the outputs (of the first layer: its share
// of the inputs) and the cluster's features: as many as without clusters. Tiles of 16 x 8 floats lie as
// [owner of the 8 features][step of the share][lane], and the rows that it multiplies forward, as bfloat16, too.
//
// Operands. All warps receive the share, and put it as fragments into shared memory, [step][tile of 16
// examples][lane]. A weight gradient has the features of the whole cluster as its other operand: of the
// activations or gradients that the owners published.
//
// Partial sums. Each block sends to every block of its cluster, its own included, in every exchange. Two receive
// buffers alternate for the reason in exchange_dsmem.cuh.
#pragma once
#include "device/barriers.cuh"
#include "persistent/streamed.cuh"

template <typename C>
struct StreamedClusters : Streamed<C> {
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

  __device__ __forceinline__ explicit StreamedClusters(int block)
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
      return make_uint2(ptx::transpose_matrix(ptx::pack_bf16(w.x, w.y)), ptx::transpose_matrix(ptx::pack_bf16(w.z, w.w)));
    }
  };

  // A GEMM of this block's share, whose sums go to the owners of the features.
  template <int STEPS, typename A, typename W>
  __device__ __forceinline__ void multiply_share(A fragments, W weights) const {
    expect(kParts * kPartFloats);
    constexpr int each = ceil_div(STEPS, kSplits), units = kPairs * ceil_div(kPeers, kAcross);
    static_assert(units * kSplits <= kWarps, "too many parts");
    const int pair = warp_index() % kPairs, first = warp_index() % units / kPairs * kAcross;
    const int split = warp_index() / units;
    if (split < kSplits) {
      float sums[kAcross][2][4] = {};
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int step = split * each + i;
        if (STEPS % each != 0 && step >= STEPS) break;
        unsigned int a[2][4];
        ptx::load_matrices<false>(a[0], fragments(step, 2 * pair));
        ptx::load_matrices<false>(a[1], fragments(step, 2 * pair + 1));
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
          const uint2 w = weights(min(first + j, kPeers - 1), step);
#pragma unroll
          for (int m = 0; m < 2; ++m) ptx::multiply<bfloat16>(sums[j][m], a[m], w.x, w.y);
        }
      }
#pragma unroll
      for (int i = 0; i < kAcross; ++i) {
        if (kPeers % kAcross != 0 && first + i >= kPeers) break;
#pragma unroll
        for (int m = 0; m < 2; ++m) {  // as add_up takes them
          send(first + i, (q * kSplits + split) * kPartFloats + ((2 * pair + m) * 32 + (lane_index() ^ m * 4)) * 4, sums[i][m]);
        }
      }
    }
    __syncthreads();  // weights and operands have been read
  }

  // -- updates -------------------------------------------------------------------------------------------------
  // Tiles of weights that a warp updates, and sends: of one step and kOwners owners. body(owner, step).
  template <int STEPS>
  static constexpr int kSplit = smaller(kWarps / STEPS > 0 ? kWarps / STEPS : 1, kPeers);
  template <int STEPS>
  static constexpr int kOwners = ceil_div(kPeers, kSplit<STEPS>);

  // The gradient and update of this block's weights: the fragments transposed, times what the peers own. All
  // threads call `loaded` when the fragments have been read.
  template <int STEPS, typename A, typename F>
  static __device__ __forceinline__ void update_share(A fragments, float4* weights, const Rule& rule, F loaded) {
    constexpr int owners = kOwners<STEPS>, units = STEPS * kSplit<STEPS>;
    unsigned int left[kTiles][4];
    const auto load = [&](int unit) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        unsigned int a[4];
        ptx::load_matrices<true>(a, fragments(unit % STEPS, m));
        left[m][0] = a[0], left[m][1] = a[2], left[m][2] = a[1], left[m][3] = a[3];
      }
    };
    const auto apply = [&](int unit) {
      const int step = unit % STEPS, first = unit / STEPS * owners;
      float4 w[owners];
      float gradients[owners][4] = {};
#pragma unroll
      for (int i = 0; i < owners; ++i) {
        const int owner = first + i;
        if (kPeers % owners != 0 && owner >= kPeers) break;
        w[i] = weights[(owner * STEPS + step) * 32 + lane_index()];
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const uint4 b = peers()[(owner * kPairs + pair) * 32 + lane_index()];
          ptx::multiply<bfloat16>(gradients[i], left[2 * pair], b.x, b.y);
          ptx::multiply<bfloat16>(gradients[i], left[2 * pair + 1], b.z, b.w);
        }
      }
#pragma unroll
      for (int i = 0; i < owners; ++i) {
        if (kPeers % owners != 0 && first + i >= kPeers) break;
        weights[((first + i) * STEPS + step) * 32 + lane_index()] = updated(w[i], gradients[i], rule);
      }
    };
    const int warp = warp_index();
    if constexpr (units <= kWarps) {
      if (warp < units) load(warp);
      loaded();
      if (warp < units) apply(warp);
    } else {
#pragma unroll 1
      for (int unit = warp; unit < units; unit += kWarps) {
        load(unit);
        apply(unit);
      }
      loaded();
    }
  }

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

  // -- the phases of a step ------------------------------------------------------------------------------------
  __device__ __forceinline__ void finish_forward(int bias, int own, float4* to, unsigned int bit) {
    Base::template finish_forward<kParts>(wait(), at(bias), Base::template at_as<float4>(own), to, bit);
  }
  __device__ __forceinline__ void first_forward(int stage, int weights, int bias, int own, float4* to,
                                                unsigned int bit, Stamps stamp) {
    ptx::wait_for_copies<0>();
    __syncthreads();
    stamp(0);
    multiply_share<kInputShare>(OfInputs{stage}, Tiles<kInputShare>{Base::template at_as<const float4>(weights)});
    stamp(1);
    finish_forward(bias, own, to, bit);
    stamp(2);
  }
  __device__ __forceinline__ void forward(const float4* from, int words, int bias, int own, float4* to,
                                          unsigned int bit, Stamps stamp) {
    receive_share<false>(from, nullptr, bit);
    stamp(0);
    multiply_share<kShare>(OfShare{}, Words{Base::template at_as<const uint2>(words)});
    stamp(1);
    finish_forward(bias, own, to, bit);
    stamp(2);
  }

  // A warp has the logits of a tile and eight outputs. All blocks of the cluster get the sums of this share.
  __device__ __forceinline__ void send_logits(const uint4* last) const {
    expect(kPeers * kLogitFloats);
    const int tile = warp_index() % kTiles, half = warp_index() / kTiles;
    if (half > (kSecond > 0)) return;
    float sums[2][4] = {};
#pragma unroll
    for (int step = 0; step < kShare; ++step) {
      const uint4 w = Base::template load_last<false>(last, step);
      unsigned int left[4];
      ptx::load_matrices<false>(left, OfShare{}(step, tile));
      ptx::multiply<bfloat16>(sums[step % 2], left, half == 0 ? w.x : w.z, half == 0 ? w.y : w.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[0][i] += sums[1][i];
    int place = q * kLogitFloats + (tile * 32 + lane_index()) * 4;
    if constexpr (kSecond > 0) {
      if (half > 0) {
        if (lane_index() % 4 >= kSecond) return;
        place = q * kLogitFloats + (kTiles * 32 + (tile * 8 + lane_index() / 4) * kSecond + lane_index() % 4) * 4;
      }
    }
#pragma unroll
    for (int to = 0; to < kPeers; ++to) send(to, place, sums[0]);
  }
  __device__ __forceinline__ void receive_logits(const float* bias, float* logits) {
    const float* const from = wait();
#pragma unroll
    for (int i = thread_index(); i < kLogitFloats / 4; i += Shape::kThreads) {
      int tile = i / 32, line = i % 32 / 4, output = i % 4 * 2;
      if constexpr (kSecond > 0) {
        const int further = i - kTiles * 32;
        if (further >= 0) {
          tile = further / (8 * kSecond), line = further / kSecond % 8, output = 8 + further % kSecond * 2;
        }
      }
      float sums[4] = {};
#pragma unroll
      for (int part = 0; part < kPeers; ++part) {
        const float4 found = reinterpret_cast<const float4*>(from + part * kLogitFloats)[i];
        sums[0] += found.x, sums[1] += found.y, sums[2] += found.z, sums[3] += found.w;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (output + j >= kOutputs) break;
        const float add = kBias ? bias[output + j] : 0.0f;
        float* const to = logits + (output + j) * Shape::kPitch + tile * 16 + line;
        to[0] = sums[j] + add, to[8] = sums[2 + j] + add;
      }
    }
  }
  // What was received becomes the gradients of its sums, in the warps that have stored it.
  static __device__ __forceinline__ void last_backward(const uint4* last, const Half* gradient) {
#pragma unroll
    for (int unit = warp_index(); unit < kUnits; unit += kWarps) {
      const int step = unit / kPairs, pair = unit % kPairs;
      const uint4 w = Base::template load_last<true>(last, step);
      const unsigned int b[2][2] = {{w.x, w.z}, {w.y, w.w}};
#pragma unroll
      for (int m = 2 * pair; m < 2 * pair + 2; ++m) {
        unsigned int d[4];
        Base::load_gradient(d, gradient, m);
        unsigned int saved[4];
        ptx::load_matrices<false>(saved, OfShare{}(step, m));
        float sums[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) ptx::multiply<bfloat16>(sums[half], d, b[half][0], b[half][1]);
        store_fragments(step, m, slopes(sums[0][0], sums[0][1], saved[0]), slopes(sums[0][2], sums[0][3], saved[1]),
                        slopes(sums[1][0], sums[1][1], saved[2]), slopes(sums[1][2], sums[1][3], saved[3]));
      }
    }
  }
  // Up to the gradient that the backward GEMM of the layer below takes. `loss` makes that of the logits.
  template <typename F>
  __device__ __forceinline__ void last_layer(const float4* from, const float4* others, int last, int bias, int logits,
                                             int gradient, F loss, unsigned int bit, Stamps stamp) {
    receive_share<true>(from, others, bit);
    stamp(0);
    send_logits(Base::template at_as<const uint4>(last));
    receive_logits(at(bias), at(logits));
    __syncthreads();
    stamp(1);
    loss();
    __syncthreads();
    stamp(2);
    last_backward(Base::template at_as<const uint4>(last), Base::template at_as<const Half>(gradient));
    __syncthreads();
    stamp(3);
  }
  // The backward GEMM of a layer by the gradient that was received, and the update of its weights.
  __device__ __forceinline__ void pass_back(int own_values, int own, int weights, float4* to, unsigned int bit,
                                            const Rule& rule, Stamps stamp) {
    multiply_share<kShare>(OfShare{}, Tiles<kShare>{Base::template at_as<const float4>(weights)});
    stamp(0);
    const unsigned short* const saved = Base::template at_as<const unsigned short>(own_values);
    Base::template add_up<kParts>(wait(), [=](int number, int, int, float sum) {
      const float value = Activation::backward(sum, low(saved[number]));
      Base::template store_own<false>(number, value, Base::template at_as<float4>(own), to, bit);
    });
    stamp(1);
    update_share<kShare>(OfShare{}, Base::template at_as<float4>(weights), rule, [] {});
  }
  __device__ __forceinline__ void receive_gradient(const float4* from, const float4* others, unsigned int bit,
                                                   Stamps stamp) const {
    receive_share<true>(from, others, bit);
    stamp(0);
  }
  // With one stage, the inputs of the next step, `rows`, come as soon as those of this one are in registers.
  template <typename T>
  __device__ __forceinline__ void update_first(const T* images, int ld, int rows, const float4* others, float4 early,
                                               int stage, int weights, unsigned int bit, const Rule& rule,
                                               Stamps stamp) const {
    float4 v[1] = {early};
    const float4* const from = quad_of_peers(others);
    receive_rest(v, [&](int) { return from; }, bit);
    __syncthreads();  // the update above has read what lay there
    store_peers(v[0]);
    __syncthreads();
    stamp(1);
    update_share<kInputShare>(OfInputs{stage}, Base::template at_as<float4>(weights), rule, [&] {
      if constexpr (Base::kStages == 1) {
        __syncthreads();
        fetch_inputs(images, ld, rows, stage);
      }
    });
  }

  // -- new weights for the forward GEMMs of other blocks: as quads of StreamedWeights, [receiver][sender][lane] ------
  template <int LAYERS>
  static __device__ __noinline__ void send_weights(StreamedClusters net, float4* sent, int place, unsigned int bit) {
    const float4* const weights = Base::template at_as<const float4>(place);
#pragma unroll 1
    for (int unit = warp_index(); unit < kShare * kSplit<kShare>; unit += kWarps) {
      const int step = unit % kShare, first = unit / kShare * kOwners<kShare>;
#pragma unroll
      for (int owner = first; owner < first + kOwners<kShare>; ++owner) {
        if (kPeers % kOwners<kShare> != 0 && owner >= kPeers) break;
#pragma unroll
        for (int trio = 0; trio < ceil_div(LAYERS, 3); ++trio) {
          unsigned int words[2][3] = {};
#pragma unroll
          for (int j = 0; j < 3; ++j) {
            if (trio * 3 + j >= LAYERS) break;
            const float4 w = weights[((trio * 3 + j) * kSteps + owner * kShare + step) * 32 + lane_index()];
            words[0][j] = ptx::pack_bf16(w.x, w.y), words[1][j] = ptx::pack_bf16(w.z, w.w);
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float4 quad = make_float4(__uint_as_float(words[half][0]), __uint_as_float(words[half][1]),
                                            __uint_as_float(words[half][2]), 0.0f);
            const int receiver = (net.q * kShare + step) * 2 + half;
            ptx::store_flagged(sent + ((trio * kBlocks + receiver) * kBlocks + net.cluster * kPeers + owner) * 32 +
                                   lane_index(), quad, bit);
          }
        }
      }
    }
  }
  // Rows of quads [own row][sender of the share], of which a warp receives some.
  static constexpr int kRows = 2 * kSteps, kRowsEach = ceil_div(kRows, kWarps);
  using Early = float4[kRowsEach];
  __device__ __forceinline__ const float4* row_of(const float4* sent, int trio, int row) const {
    const int i = min(row, kRows - 1);
    return sent + ((trio * kBlocks + cluster * kPeers + i / (2 * kShare)) * kBlocks + q * 2 * kShare +
                   i % (2 * kShare)) * 32 + lane_index();
  }
  // Loads those of three layers ahead of their use, whether or not they are there.
  __device__ __forceinline__ void request_weights(Early& v, const float4* sent) const {
    const int begin = warp_index() * kRowsEach;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) v[i] = ptx::load_flagged(row_of(sent, 0, begin + i));
  }
  template <int LAYERS>
  __device__ __forceinline__ void receive_weights(Early& v, const float4* sent, int place, unsigned int bit) const {
    unsigned int* const words = Base::template at_as<unsigned int>(place);
    const int begin = warp_index() * kRowsEach, lane = lane_index();
#pragma unroll
    for (int trio = 0; trio < ceil_div(LAYERS, 3); ++trio) {
      const auto place = [&](int i) { return row_of(sent, trio, begin + i); };
      if (trio == 0) {
        receive_rest(v, place, bit);
      } else {
        receive_quads(v, place, bit);
      }
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        const unsigned int found[3] = {bits(v[i].x), bits(v[i].y), bits(v[i].z)};
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          if (trio * 3 + j < LAYERS && (kRows % kWarps == 0 || begin + i < kRows)) {
            words[(((trio * 3 + j) * kSteps + (begin + i) / 2) * 32 + lane) * 2 + (begin + i) % 2] = found[j];
          }
        }
      }
    }
  }
  // The last layer's words [step of the share][lane], and behind them those of this block's own features.
  __device__ __forceinline__ int last_step(int step) const { return step < kShare ? q * kShare + step : rank() / 2; }
  static __device__ __noinline__ void receive_last(StreamedClusters net, const float4* sent, int place, unsigned int bit) {
    unsigned int* const words = Base::template at_as<unsigned int>(place) + lane_index();
#pragma unroll 1
    for (int step = warp_index(); step <= kShare; step += kWarps) {
      float4 v[2];
      receive_quads(v, [&](int i) { return sent + (net.last_step(step) * 2 + i) * 32 + lane_index(); }, bit);
      unsigned int* const to = words + step * 128;
      to[0] = bits(v[0].x), to[32] = bits(v[1].x), to[64] = bits(v[0].y), to[96] = bits(v[1].y);
    }
  }
  __device__ __forceinline__ const uint4* own_last(int place) const {  // counted from the step of own features on
    return Base::template at_as<const uint4>(place) + (kShare - rank() / 2) * 32;
  }

  // -- begin and end of a launch -------------------------------------------------------------------------------
  // body(float of the tile, output, input) for what this warp has of a layer's tiles: the first, or one between.
  template <bool FIRST, typename F>
  __device__ __forceinline__ void for_tiles(F body) const {
    constexpr int steps = FIRST ? kInputShare : kShare;
#pragma unroll 1
    for (int tile = warp_index(); tile < kPeers * steps; tile += kWarps) {
      const int step = q * steps + tile % steps, owner = cluster * kPeers + tile / steps;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int down = lane_index() / 4 + i / 2 * 8, across = owner * 8 + lane_index() % 4 * 2 + i % 2;
        if constexpr (FIRST) {
          const int in = step * 16 + down;
          if (in < kInputs) body((tile * 32 + lane_index()) * 4 + i, across, in);
        } else {
          body((tile * 32 + lane_index()) * 4 + i, step * 16 + down, across);
        }
      }
    }
  }
  template <bool FIRST>
  static __device__ __noinline__ void load_tiles(StreamedClusters net, int place, const float* w, int ld) {
    net.template for_tiles<FIRST>([=](int i, int out, int in) { at(place)[i] = w[static_cast<long long>(out) * ld + in]; });
  }
  template <bool FIRST, typename T>
  static __device__ __noinline__ void store_tiles(StreamedClusters net, T* w, int ld, int place) {
    net.template for_tiles<FIRST>([=](int i, int out, int in) {
      w[static_cast<long long>(out) * ld + in] = from_float<T>(at(place)[i]);
    });
  }
  static __device__ __forceinline__ unsigned int word_of(const float* w, int ld, int output, int step, int half) {
    const float* const from = w + static_cast<long long>(output) * ld + step * 16 + half * 8 + lane_index() % 4 * 2;
    return ptx::pack_bf16(from[0], from[1]);
  }
  static __device__ __noinline__ void load_words(StreamedClusters net, int place, const float* w, int ld) {
    unsigned int* const words = Base::template at_as<unsigned int>(place);
#pragma unroll 1
    for (int row = warp_index(); row < 2 * kSteps; row += kWarps) {
      const int output = (net.cluster * kPeers + row / (2 * kShare)) * 8 + lane_index() / 4;
      words[(row / 2 * 32 + lane_index()) * 2 + row % 2] =
          word_of(w, ld, output, net.q * kShare + row / 2 % kShare, row % 2);
    }
  }
  static __device__ __noinline__ void load_last_words(StreamedClusters net, int place, const float* w, int ld) {
    unsigned int* const words = Base::template at_as<unsigned int>(place);
#pragma unroll 1
    for (int row = warp_index(); row < 4 * (kShare + 1); row += kWarps) {
      const int output = row % 4 / 2 * 8 + lane_index() / 4;
      words[row * 32 + lane_index()] =
          output < kOutputs ? word_of(w, ld, output, net.last_step(row / 4), row % 2) : 0u;
    }
  }
};
