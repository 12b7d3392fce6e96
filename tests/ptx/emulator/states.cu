// How weights and optimizer state move between their tensors and the shared memory of a block
// (persistent/weights.cuh), by themselves. Block b has the tiles of group b % SHARES, and is number b / SHARES
// of those that store them.
#include "persistent/weights.cuh"

struct Small {
  static constexpr int kThreads = 64;
};

template <int STATES, int SHARES>
__global__ void load_kept(float* kept, int ldkept, float* w, int ldw, float* bias, int across,
                          int of_weights, int tiles, int base, int state, int out, int outs, int in, int ins) {
  const int share = static_cast<int>(blockIdx.x);
  load_states<Small, true, STATES, SHARES>(kept + share * ldkept, across, of_weights, tiles, base, share, state,
                                           StateTensors<1>{{w}, {ldw}, {bias}}, {out, outs, in, ins});
}

template <int STATES, int SHARES>
__global__ void store_kept(const float* kept, int ldkept, float* w, int ldw, float* bias, int across,
                           int of_weights, int tiles, int base, int state, int out, int outs, int in, int ins) {
  const int share = static_cast<int>(blockIdx.x) % SHARES;
  store_states<Small, STATES, SHARES>(
      kept + share * ldkept, across, of_weights, tiles, base, share, state, StateTensors<1>{{w}, {ldw}, {bias}},
      {out, outs, in, ins}, {static_cast<int>(blockIdx.x) / SHARES, static_cast<int>(gridDim.x) / SHARES});
}

// `image` [inputs, outputs] and `biases` of each block.
__global__ void load_images(float* image, int ldimage, float* biases, int ldbiases, const float* w, int ldw,
                            const float* bias, int out, int outs, int in, int ins) {
  const Shard part = {out, outs, in, ins};
  float* const shared = ptx::dynamic_shared<float>();
  clear_shared<Small>(shared, (ins * ldimage + ldbiases + 3) / 4 * 4);
  __syncthreads();
  load_weights<Small>(shared, ldimage, w, ldw, part);
  load_biases<Small>(shared + ins * ldimage, bias, part);
  ptx::commit_copies();
  ptx::wait_for_copies<0>();
  __syncthreads();
  for (int i = thread_index(); i < ins * ldimage; i += Small::kThreads) image[i] = shared[i];
  for (int i = thread_index(); i < ldbiases; i += Small::kThreads) biases[i] = shared[ins * ldimage + i];
}

__global__ void store_images(const float* image, int ldimage, const float* biases, float* w, int ldw, float* bias,
                             int out, int outs, int in, int ins) {
  const Shard part = {out, outs, in, ins};
  const StoreShare stores = {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
  store_weights_as<Small>(w, ldw, image, ldimage, part, stores);
  store_biases<Small>(bias, biases, part, stores);
}
