// What an optimizer does with one weight: shared by the kernels that update a parameter (sgd.cu,
// momentum.cu, adam.cu) and by the epilogues of the products that make its gradient.
//
//   Sgd:       w -= lr * (g + decay * w)
//   Momentum:  g += decay * w;  v = momentum * v + g;  w -= lr * (nesterov ? g + momentum * v : v)
//   Adam:      g += decay * w, or w -= lr * decay * w where decoupled;  m += (1 - beta1) * (g - m);
//              v += (1 - beta2) * (g^2 - v);  w -= lr * m^ / (sqrt(v^) + eps), ^ corrected for t
//
// A rule is made of what the op is told, asked to `begin` once a thread where memory may be read, and
// then to `step`, with the gradient unscaled, and the weight's kStates values of state (float32,
// zero at first: Momentum's v; Adam's m and v).
#pragma once
#include "updates.cuh"

struct Sgd {
  static constexpr int kStates = 0;
  float rate;  // the op's, until begin() the step's
  float decay;

  __device__ __forceinline__ void begin(const Moment& when) { rate = when.learning_rate(rate); }
  __device__ __forceinline__ float step(float weight, float gradient, float*) const {
    return weight - rate * (gradient + decay * weight);
  }
};

struct Momentum {
  static constexpr int kStates = 1;
  float rate;
  float decay;
  float momentum;
  bool nesterov;

  __device__ __forceinline__ void begin(const Moment& when) { rate = when.learning_rate(rate); }
  __device__ __forceinline__ float step(float weight, float gradient, float* state) const {
    gradient += decay * weight;
    state[0] = momentum * state[0] + gradient;
    return weight - rate * (nesterov ? gradient + momentum * state[0] : state[0]);
  }
};

// 1 - beta^t without the cancellation: beta^t is near 1 for small t.
__device__ __forceinline__ float bias_correction(float complement, int t) {
  return -expm1f(static_cast<float>(t) * log1pf(-complement));
}

struct Adam {
  static constexpr int kStates = 2;
  float rate;
  float decay;
  float complement1;  // 1 - beta, which is what counts: rounded from the difference of doubles
  float complement2;
  float eps;
  bool decoupled;
  float pace = 0.0f;
  float spread = 0.0f;

  __device__ __forceinline__ Adam(float lr, float decay_, double beta1, double beta2, float eps_,
                                  bool decoupled_)
      : rate(lr), decay(decay_), complement1(static_cast<float>(1.0 - beta1)),
        complement2(static_cast<float>(1.0 - beta2)), eps(eps_), decoupled(decoupled_) {}

  __device__ __forceinline__ void begin(const Moment& when) {
    rate = when.learning_rate(rate);
    const int t = when.total_step() + 1;
    pace = rate / bias_correction(complement1, t);
    spread = 1.0f / sqrtf(bias_correction(complement2, t));
  }
  __device__ __forceinline__ float step(float weight, float gradient, float* state) const {
    if (decoupled) {
      weight -= rate * decay * weight;
    } else {
      gradient += decay * weight;
    }
    state[0] += complement1 * (gradient - state[0]);
    state[1] += complement2 * (gradient * gradient - state[1]);
    return weight - pace * state[0] / (sqrtf(state[1]) * spread + eps);
  }
};
