// advance, tick: the position of training, kept in device memory so that a recorded graph needs no
// new arguments from step to step.
//
//   advance: cursor += steps, the index in the epoch of the next step (int32[1])
//   tick:    clock += {1, steps}, the epochs and the steps done since training began (int32[2]);
//            clock.cuh says how it wraps around
//
// advance is used by every configuration that keeps the data set on the device. tick is used at the end
// of an epoch if anything reads the clock (schedule, Adam, stochastic rounding) and the order stays the
// same; otherwise epoch_boundary.cu does both.
// Launch: one thread.
// Limit: the launch.
#include "elementwise/clock.cuh"
#include "primitives/pdl.cuh"

extern "C" __global__ void advance(int* cursor, int steps) {
  pdl_wait();
  pdl_trigger();
  if (blockIdx.x == 0 && threadIdx.x == 0) *cursor += steps;
}

extern "C" __global__ void tick(int* clock, int steps) {
  pdl_wait();
  pdl_trigger();
  if (blockIdx.x == 0 && threadIdx.x == 0) tick_clock(clock, steps);
}
