// Kernels that show what random.cuh draws, one element a thread.
#include "random.cuh"

extern "C" __global__ void draw_words(unsigned int* words, unsigned long long seed,
                                      unsigned int stream, unsigned long long counter,
                                      unsigned int purpose) {
  const Words drawn = philox(seed, stream, counter + threadIdx.x, purpose);
  for (int i = 0; i < 4; ++i) words[4 * threadIdx.x + i] = drawn.word[i];
}

// Both ways to the same bits: the element alone, and its place in its group.
extern "C" __global__ void draw_rounding(unsigned int* alone, unsigned int* grouped,
                                         unsigned long long seed, unsigned int stream, int step,
                                         unsigned int first) {
  const unsigned int element = first + threadIdx.x;
  alone[threadIdx.x] = rounding_bits(seed, stream, step, element);
  const Words group = rounding_group(seed, stream, step, element / 8u);
  grouped[threadIdx.x] = rounding_of(group, static_cast<int>(element % 8u));
}
