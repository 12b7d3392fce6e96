// Numbers with marks (onchip_marks.cuh) from one block to another: what is told is what is heard.
#include "persistent/flag_bits.cuh"

// Block 0 tells `rounds` sets of 64 quads by two slots that take turns, block 1 hears and answers in a
// slot of its own by which block 0 knows that it may go on.
template <typename V>
__device__ void talk(const float4* say, V* slots, float4* heard, V* answers, unsigned int first, int rounds) {
  const int lane = lane_index();
  for (int round = 0; round < rounds; ++round) {
    const unsigned int number = first + static_cast<unsigned int>(round);
    const unsigned int mark = ~(number >> 1) & 1u;
    V* const slot = slots + (number & 1u) * 64 + lane;
    if (blockIdx.x == 0) {
      tell(slot, say[round * 64 + lane], mark);
      tell(slot + 32, say[round * 64 + 32 + lane], mark);
      V v[1];
      hear(v, [=](int) { return answers + lane; }, ~number & 1u, 1);
    } else {
      V v[3];
      hear(v, [=](int i) { return slot + i % 2 * 32; }, mark, 2);  // the first twice
      for (int i = 0; i < 3; ++i) heard[(round * 3 + i) * 32 + lane] = numbers_of(v[i]);
      tell(answers + lane, numbers_of(v[0]), ~number & 1u);
    }
  }
}

__global__ void converse(const float4* say, float4* slots, float4* heard, float4* answers,
                         unsigned int first, int rounds) {
  talk(say, slots, heard, answers, first, rounds);
}

__global__ void converse_in_halves(const float4* say, uint2* slots, float4* heard, uint2* answers,
                                   unsigned int first, int rounds) {
  talk(say, slots, heard, answers, first, rounds);
}
