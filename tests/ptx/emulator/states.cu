// How optimizer state moves between its tensors and the tiles that a block keeps (persistent/weights.cuh), by
// itself. Block b has the tiles of group b % SHARES, and is number b / SHARES of those that store them.
#include "persistent/weights.cuh"

struct Small {
  static constexpr int kThreads = 64;
};

template <int STATES, int SHARES>
__global__ void load_kept(float* kept, int ldkept, const float* w, int ldw, const float* bias, int across,
                          int of_weights, int tiles, int base, int state, int out, int outs, int in, int ins) {
  const int share = static_cast<int>(blockIdx.x);
  load_states<Small, true, STATES, SHARES>(kept + share * ldkept, across, of_weights, tiles, base, share, state,
                                           w, ldw, bias, {out, outs, in, ins});
}

template <int STATES, int SHARES>
__global__ void store_kept(const float* kept, int ldkept, float* w, int ldw, float* bias, int across,
                           int of_weights, int tiles, int base, int state, int out, int outs, int in, int ins) {
  const int share = static_cast<int>(blockIdx.x) % SHARES;
  store_states<Small, STATES, SHARES>(
      kept + share * ldkept, across, of_weights, tiles, base, share, state, w, ldw, bias, {out, outs, in, ins},
      {static_cast<int>(blockIdx.x) / SHARES, static_cast<int>(gridDim.x) / SHARES});
}
