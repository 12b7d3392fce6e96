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
#include "persistent/streamed_cluster_weights.cuh"

template <typename C>
struct StreamedClusters : StreamedClusterWeights<C> {
  using Base = StreamedClusterWeights<C>;
  using typename Base::Shape;
  using typename Base::Rule;
  using typename Base::Activation;
  using typename Base::Stamps;
  using typename Base::OfShare;
  using typename Base::OfInputs;
  using typename Base::Words;
  template <int STEPS>
  using Tiles = typename Base::template Tiles<STEPS>;
  template <int STEPS>
  static constexpr int kSplit = Base::template kSplit<STEPS>;
  template <int STEPS>
  static constexpr int kOwners = Base::template kOwners<STEPS>;
  using Base::kTiles, Base::kPairs, Base::kWarps, Base::kOutputs, Base::kBias, Base::kPartFloats, Base::kPeers;
  using Base::kShare, Base::kInputShare, Base::kUnits, Base::kAcross, Base::kSplits, Base::kParts, Base::kSecond;
  using Base::kLogitFloats, Base::at, Base::low, Base::slopes, Base::updated, Base::q, Base::expect, Base::send;
  using Base::wait, Base::peers, Base::store_fragments, Base::store_peers, Base::quad_of_peers;
  using Base::receive_rest, Base::fetch_inputs;
  __device__ __forceinline__ explicit StreamedClusters(int block) : Base(block) {}

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
          const int place = ((2 * pair + m) * 32 + (lane_index() ^ m * 4)) * 4;
          send(first + i, (q * kSplits + split) * kPartFloats + place, sums[i][m]);
        }
      }
    }
    __syncthreads();  // weights and operands have been read
  }

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
    this->template receive_share<false>(from, nullptr, bit);
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
        __syncwarp();  // each lane has read what others overwrite
        store_fragments(step, m, slopes(sums[0][0], sums[0][1], saved[0]), slopes(sums[0][2], sums[0][3], saved[1]),
                        slopes(sums[1][0], sums[1][1], saved[2]), slopes(sums[1][2], sums[1][3], saved[3]));
      }
    }
  }
  // Up to the gradient that the backward GEMM of the layer below takes. `loss` makes that of the logits.
  template <typename F>
  __device__ __forceinline__ void last_layer(const float4* from, const float4* others, int last, int bias, int logits,
                                             int gradient, F loss, unsigned int bit, Stamps stamp) {
    this->template receive_share<true>(from, others, bit);
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
    this->template receive_share<true>(from, others, bit);
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
};
