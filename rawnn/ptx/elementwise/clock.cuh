// The clock of training: int32[2], the epochs and the steps done since it began.
#pragma once

// clock += {1, steps}. From 3 * 2^29 steps on, the count wraps around within the last 2^29: another epoch cannot
// overflow it, and small step numbers never repeat (rawnn/plan/ops/epoch.py).
__device__ __forceinline__ void tick_clock(int* clock, int steps) {
  constexpr unsigned int turn = 1u << 29;
  const unsigned int done = static_cast<unsigned int>(clock[1]) + static_cast<unsigned int>(steps);
  clock[0] += 1;
  clock[1] = static_cast<int>(done < 3 * turn ? done : 2 * turn + done % turn);
}
