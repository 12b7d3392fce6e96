// Kernels that show what random.cuh draws and rounding.cuh makes of it, one element a thread, or 8; and
// where elements of matrices lie.
#include "primitives/common.cuh"
#include "primitives/rounding.cuh"

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

// 8 values from any element on, rounded at once.
extern "C" __global__ void round_values(const float* values, unsigned int* rounded,
                                        unsigned long long seed, unsigned int stream, int step,
                                        unsigned int first) {
  const Rounding how = {true, seed, stream, step};
  float own[8];
  unsigned int words[4];
  for (int i = 0; i < 8; ++i) own[i] = values[8 * threadIdx.x + i];
  round_stochastic(words, own, rounding_window<8>(how, first + 9u * threadIdx.x).word);
  for (int i = 0; i < 4; ++i) rounded[4 * threadIdx.x + i] = words[i];
}

// Elements ahead of an element of the matrix; only its address is computed.
extern "C" __global__ void place_elements(unsigned long long* places, const unsigned char* matrix,
                                          int ld, int row, int column) {
  places[threadIdx.x] =
      static_cast<unsigned long long>(at(matrix, ld, row + static_cast<int>(threadIdx.x), column) - matrix);
}
