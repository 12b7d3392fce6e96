// adjust_scale: dynamic loss scaling, once after the updates of a step.
//
//   loss_scale: float32[2] = {scale, good steps in a row}
//   overflow: int32[1], not 0 if a gradient of this step could not be stored (no update was made)
//   after an overflow: scale / 2 and the count of good steps is 0; after `growth` good steps in a row:
//   scale * 2 and the count is 0. The scale stays in [1, 2^24]. overflow becomes 0.
//
// Used where gradients are float16 (Micikevicius et al., "Mixed precision training", 2018).
// Launch: one thread.
// Limit: the launch.
#include "primitives/pdl.cuh"

extern "C" __global__ void adjust_scale(int* overflow, float* loss_scale, int growth) {
  pdl_wait();
  pdl_trigger();
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  float scale = loss_scale[0];
  float good = loss_scale[1] + 1.0f;
  if (*overflow != 0) {
    scale = scale > 2.0f ? 0.5f * scale : 1.0f;
    good = 0.0f;
  } else if (good >= static_cast<float>(growth)) {
    scale = scale < 8388608.0f ? 2.0f * scale : 16777216.0f;
    good = 0.0f;
  }
  loss_scale[0] = scale;
  loss_scale[1] = good;
  *overflow = 0;
}
