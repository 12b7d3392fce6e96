// Loads weights and optimizer state at the beginning of a launch, and stores them at its end. In shared
// memory they have the layout of update.cuh, in global memory they are matrices [outputs, inputs].
#pragma once
#include "persistent/update.cuh"

// The shard of a layer that this block holds: `outs` outputs from `out` on, and `ins` inputs from `in` on, of
// a matrix [outputs, inputs] with rows `ld` apart.
struct Shard {
  int out, outs, in, ins;
};

// Blocks that hold the same data share the stores: a block is number `number` of `of`, counted from 0.
struct StoreShare {
  int number, of;
};
constexpr StoreShare kStoresAll = {0, 1};

// Calls body(output, input) for the elements of a shard, or for this block's share of them. A warp takes 4
// outputs x 8 inputs, so that it accesses whole sectors of the matrix, and all banks of shared memory.
template <typename SHAPE, typename F>
__device__ __forceinline__ void for_weights(Shard shard, StoreShare stores, F body) {
  const int warps = SHAPE::kThreads / 32 * stores.of;
  const int across = ceil_div(shard.ins, 8);
  const int down = ceil_div(shard.outs, 4);
  if (across == 0) return;
  const int lane = lane_index();
  const int first = stores.number * (SHAPE::kThreads / 32) + warp_index();
  int row = first / across;
  int column = first % across;
#pragma unroll 1
  while (row < down) {
    const int out = row * 4 + lane / 8;
    const int in = column * 8 + lane % 8;
    if (out < shard.outs && in < shard.ins) body(out, in);
    row += warps / across, column += warps % across;
    if (column >= across) ++row, column -= across;
  }
}

// Loads a shard. If the type stays the same, by asynchronous copies, which wait_for_copies waits for: so the
// round trips of all layers overlap.
template <typename SHAPE, typename T>
__device__ __forceinline__ void load_weights(float* image, int pitch, const T* __restrict__ w,
                                             int ld, Shard shard) {
  for_weights<SHAPE>(shard, kStoresAll, [=](int out, int in) {
    const T* const from = w + static_cast<long long>(shard.out + out) * ld + shard.in + in;
    float* const to = image + in * pitch + out;
    if constexpr (sizeof(T) == sizeof(float)) {
      ptx::copy_async<4>(ptx::shared_address(to), from);
    } else {
      *to = to_float(*from);
    }
  });
}

// Clears `count` floats, a multiple of four.
template <typename SHAPE>
__device__ __forceinline__ void clear_shared(float* shared, int count) {
  const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int i = thread_index(); i < count / 4; i += SHAPE::kThreads) {
    reinterpret_cast<float4*>(shared)[i] = zero;
  }
}

template <typename SHAPE>
__device__ __forceinline__ void load_floats(float* to, const float* __restrict__ from, int count) {
#pragma unroll 1
  for (int i = thread_index(); i < count; i += SHAPE::kThreads) {
    ptx::copy_async<4>(ptx::shared_address(to + i), from + i);
  }
}

template <typename SHAPE>
__device__ __forceinline__ void load_biases(float* to, const float* __restrict__ b, Shard shard) {
  load_floats<SHAPE>(to, b + shard.out, shard.outs);
}

template <typename SHAPE>
__device__ __forceinline__ void store_biases(float* __restrict__ b, const float* from, Shard shard,
                                             StoreShare stores) {
#pragma unroll 1
  for (int i = stores.number * SHAPE::kThreads + thread_index(); i < shard.outs;
       i += SHAPE::kThreads * stores.of) {
    b[shard.out + i] = from[i];
  }
}

template <typename SHAPE, typename T>
__device__ __forceinline__ void store_weights_as(T* __restrict__ w, int ld, const float* image,
                                                 int pitch, Shard shard, StoreShare stores) {
  for_weights<SHAPE>(shard, stores, [=](int out, int in) {
    w[static_cast<long long>(shard.out + out) * ld + shard.in + in] =
        from_float<T>(image[in * pitch + out]);
  });
}

// Some of the STATES tensors of a layer's optimizer state: of its weights, and of its biases.
template <int COUNT>
struct StateTensors {
  float* w[COUNT];
  int ld[COUNT];
  float* b[COUNT];
};

// Calls a body for a lane's part of each of a layer's `tiles` of optimizer state: `of_weights` tiles of
// weights, `across` side by side, then tiles of biases. If SHARES groups share the updates, a group holds
// every SHARES-th tile, those whose number, counted from `base`, is `share` modulo SHARES. `stores` says which
// of them this block handles. The body gets the place of the lane's first float of the first state, whether the
// tile is of biases, the lane's first output and input in the shard, and which of its four elements are no
// padding.
template <typename SHAPE, int STATES, int SHARES, typename F>
__device__ __forceinline__ void for_states(int across, int of_weights, int tiles, int base,
                                           int share, Shard shard, StoreShare stores, F body) {
  constexpr int warps = SHAPE::kThreads / 32;
  const int lane = lane_index();
  const int skipped = ((share - base) % SHARES + SHARES) % SHARES;
#pragma unroll 1
  for (int tile = skipped + (stores.number * warps + warp_index()) * SHARES; tile < tiles;
       tile += warps * stores.of * SHARES) {
    const bool of_bias = tile >= of_weights;
    const int in = of_bias ? 0 : tile / across * 16 + lane / 4;
    const int out = of_bias ? (tile - of_weights) * kTileFloats + lane * 4
                            : tile % across * 8 + lane % 4 * 2;
    bool there[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      // A block without inputs of its own has all biases, too.
      there[q] = of_bias ? out + q < shard.outs
                         : out + q % 2 < shard.outs && in + q / 2 * 8 < shard.ins;
    }
    const int slot = SHARES > 1 ? (base + tile) / SHARES : tile;
    body(slot * STATES * kTileFloats + lane * 4, of_bias, out, in, there);
  }
}

// Where a lane's first element of a tile of state lies in its tensor, null if the tensor is, and the distances
// of the other three: of the second, and of the third.
struct StateElements {
  float* first;
  int second, third;

  template <int COUNT>
  __device__ __forceinline__ StateElements(const StateTensors<COUNT>& state, int i, bool of_bias, int out,
                                           int in, Shard shard)
      : first(of_bias ? state.b[i] : state.w[i]), second(of_bias ? 1 : state.ld[i]), third(of_bias ? 2 : 8) {
    const long long row = shard.out + out;
    if (first != nullptr) first += of_bias ? row : row * state.ld[i] + shard.in + in;
  }
  __device__ __forceinline__ float* at(int q) const { return first + q % 2 * second + q / 2 * third; }
};

// Loads COUNT states, of which the first is number `number`, into shared memory by asynchronous copies; padding
// is zero already. Or copies them to a workspace in global memory (GLOBAL), padding included.
template <typename SHAPE, bool GLOBAL, int STATES, int SHARES, int COUNT>
__device__ __forceinline__ void load_states(float* kept, int across, int of_weights, int tiles, int base,
                                            int share, int number, const StateTensors<COUNT>& state,
                                            Shard shard) {
  for_states<SHAPE, STATES, SHARES>(
      across, of_weights, tiles, base, share, shard, kStoresAll,
      [&](int place, bool of_bias, int out, int in, const bool (&there)[4]) {
        float values[COUNT][4];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
          const StateElements from(state, i, of_bias, out, in, shard);
          float* const to = kept + place + (number + i) * kTileFloats;
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            if constexpr (GLOBAL) {
              values[i][q] = there[q] ? *from.at(q) : 0.0f;
            } else if (there[q]) {
              ptx::copy_async<4>(ptx::shared_address(to + q), from.at(q));
            }
          }
        }
        if constexpr (GLOBAL) {
#pragma unroll
          for (int i = 0; i < COUNT; ++i) {
            *reinterpret_cast<float4*>(kept + place + (number + i) * kTileFloats) =
                make_float4(values[i][0], values[i][1], values[i][2], values[i][3]);
          }
        }
      });
}

// Stores states. Where the tensor of the biases' is null, another block stores it.
template <typename SHAPE, int STATES, int SHARES, int COUNT>
__device__ __forceinline__ void store_states(const float* kept, int across, int of_weights, int tiles, int base,
                                             int share, int number, const StateTensors<COUNT>& state,
                                             Shard shard, StoreShare stores) {
  for_states<SHAPE, STATES, SHARES>(
      across, of_weights, tiles, base, share, shard, stores,
      [&](int place, bool of_bias, int out, int in, const bool (&there)[4]) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
          const StateElements to(state, i, of_bias, out, in, shard);
          float values[4];
          spread(values, *reinterpret_cast<const float4*>(kept + place + (number + i) * kTileFloats));
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            if (there[q] && to.first != nullptr) *to.at(q) = values[q];
          }
        }
      });
}

// The same as functions that all layers share: inlined for each of many layers, loads and stores of a launch
// would be up to half of a kernel's code. One call does all it can of a layer, because calls are code, too.
// Places are given in floats from the start of shared memory; GLOBAL state begins at `global`. `b` is null
// without biases.
template <typename SHAPE, typename T>
__device__ __noinline__ void load_layer(int image, int pitch, const T* __restrict__ w, int ld, int biases,
                                        const float* __restrict__ b, Shard shard) {
  load_weights<SHAPE>(ptx::dynamic_shared<float>() + image, pitch, w, ld, shard);
  if (b != nullptr) load_biases<SHAPE>(ptx::dynamic_shared<float>() + biases, b, shard);
}

template <typename SHAPE, typename T>
__device__ __noinline__ void store_layer(T* __restrict__ w, int ld, int image, int pitch,
                                         float* __restrict__ b, int biases, Shard shard, StoreShare stores,
                                         StoreShare bias_stores) {
  store_weights_as<SHAPE>(w, ld, ptx::dynamic_shared<float>() + image, pitch, shard, stores);
  if (b != nullptr) store_biases<SHAPE>(b, ptx::dynamic_shared<float>() + biases, shard, bias_stores);
}

template <typename SHAPE, bool GLOBAL, int SHARES, int STATES>
__device__ __noinline__ void load_state(float* global, int local, int across, int of_weights, int tiles,
                                        int base, int share, StateTensors<STATES> state, Shard shard) {
  load_states<SHAPE, GLOBAL, STATES, SHARES>(GLOBAL ? global : ptx::dynamic_shared<float>() + local, across,
                                             of_weights, tiles, base, share, 0, state, shard);
}

template <typename SHAPE, bool GLOBAL, int SHARES, int STATES>
__device__ __noinline__ void store_state(float* global, int local, int across, int of_weights, int tiles,
                                         int base, int share, StateTensors<STATES> state, Shard shard,
                                         StoreShare stores) {
  store_states<SHAPE, STATES, SHARES>(GLOBAL ? global : ptx::dynamic_shared<float>() + local, across, of_weights,
                                      tiles, base, share, 0, state, shard, stores);
}
