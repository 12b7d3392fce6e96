// schedule: the learning rate of every step of the epoch that begins.
//
//   rates[s] = rule(t), t = clock[1] + s, for s = 0 .. steps-1
//   while t < warmup: lr * (t + 1) / warmup instead
//   clock: int32[2], epochs and steps done; rates: float32 [steps]
//
// SCHEDULE is Constant, StepDecay (lr * value^(t / period)) or Cosine (from lr down to value over the
// `period` steps behind the warm-up). rawnn/model/schedules has the same functions in NumPy.
// member_schedule: the same for each active one of many networks, rates [networks, steps] and clock
// [networks, 2], with lr, value, period and warmup from its row of `members` (persistent/members.cuh).
//
// Launch: one dimension, any size (grid-stride over the steps), once an epoch; 256 threads a block. Many
// networks: along y.
// Limit: the launch.
#include "primitives/pdl.cuh"

// A loop of multiplications, not powf: the host multiplies the same numbers in the same order.
struct StepDecay {
  static __device__ __forceinline__ float rate(float lr, float value, int period, int step, int) {
    float power = 1.0f;
    float square = value;
    for (int left = step / period; left > 0; left /= 2) {
      if (left % 2 != 0) power *= square;
      square *= square;
    }
    return lr * power;
  }
};

struct Constant {
  static __device__ __forceinline__ float rate(float lr, float, int, int, int) { return lr; }
};

// The squared cosine of half the angle: 1 + cos loses digits where the rate approaches its end.
struct Cosine {
  static __device__ __forceinline__ float rate(float lr, float value, int period, int step,
                                               int warmup) {
    const int behind = step - warmup;
    const float part = static_cast<float>(behind) / static_cast<float>(period);
    const float half = cospif(0.5f * (part < 1.0f ? part : 1.0f));
    return value + (lr - value) * (half * half);
  }
};

template <typename SCHEDULE>
__device__ __forceinline__ float rate_of_step(float lr, float value, int period, int warmup,
                                              int step) {
  return step < warmup ? lr * (static_cast<float>(step + 1) / static_cast<float>(warmup))
                       : SCHEDULE::rate(lr, value, period, step, warmup);
}

template <typename SCHEDULE>
__global__ void schedule(const int* __restrict__ clock, float* __restrict__ rates, float lr,
                         float value, int period, int warmup, int steps) {
  pdl_wait();
  pdl_trigger();
  const int first = clock[1];
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int s = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); s < steps; s += stride) {
    rates[s] = rate_of_step<SCHEDULE>(lr, value, period, warmup, first + s);
  }
}

template <typename SCHEDULE>
__global__ void member_schedule(const int* __restrict__ active, const int* __restrict__ members,
                                int ldmembers, const int* __restrict__ clock,
                                float* __restrict__ rates, int launched, int networks, int steps) {
  pdl_wait();
  pdl_trigger();
  for (int i = static_cast<int>(blockIdx.y); i < launched; i += static_cast<int>(gridDim.y)) {
    const int member = active[i];
    const int* const words = members + static_cast<long long>(member) * ldmembers;
    const float lr = __int_as_float(words[3]), value = __int_as_float(words[4]);
    const int first = clock[2 * member + 1];
    for (int s = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); s < steps;
         s += static_cast<int>(gridDim.x * blockDim.x)) {
      rates[static_cast<long long>(member) * steps + s] =
          rate_of_step<SCHEDULE>(lr, value, words[5], words[6], first + s);
    }
  }
}
