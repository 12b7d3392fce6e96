// advance: moves the epoch's cursor on by the steps just done. The cursor is one int32 in device
// memory, so that a recorded graph needs no new arguments from step to step.
//
// Used by every way of running that keeps the data set on the device. Launch: one thread.
// Limit: the launch.

extern "C" __global__ void advance(int* cursor, int steps) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *cursor += steps;
}
