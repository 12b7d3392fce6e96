// advance, tick: where training is, kept in device memory so that a recorded graph needs no new
// arguments from step to step.
//
//   advance: cursor += steps, the index in the epoch of the step that comes next (int32[1])
//   tick:    clock += {1, steps}, the epochs and the steps done since training began (int32[2]);
//            from 3 * 2^29 steps on the count goes back by 2^29: an epoch more never overflows it, and
//            it stays so large that nobody's first steps come again (rawnn/step/ops/epoch.py)
//
// advance is used by every way of running that keeps the data set on the device, tick at the end of
// an epoch where anything reads the clock (shuffle, schedule, Adam, stochastic rounding).
// Launch: one thread.
// Limit: the launch.
#include "pdl.cuh"

extern "C" __global__ void advance(int* cursor, int steps) {
  pdl_wait();
  pdl_trigger();
  if (blockIdx.x == 0 && threadIdx.x == 0) *cursor += steps;
}

extern "C" __global__ void tick(int* clock, int steps) {
  pdl_wait();
  pdl_trigger();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    constexpr unsigned int turn = 1u << 29;
    const unsigned int done = static_cast<unsigned int>(clock[1]) + static_cast<unsigned int>(steps);
    clock[0] += 1;
    clock[1] = static_cast<int>(done < 3 * turn ? done : 2 * turn + done % turn);
  }
}
