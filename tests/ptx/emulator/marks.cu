// Data with flag bits (persistent/flag_bits.cuh) from one block to another: what is sent is what is received.
#include "persistent/flag_bits.cuh"

// Block 0 sends `rounds` sets of 64 quads through two slots that alternate. Block 1 receives them and answers in a
// slot of its own, which tells block 0 that it may go on.
template <typename V>
__device__ void talk(const float4* say, V* slots, float4* received, V* answers, unsigned int first, int rounds) {
  const int lane = lane_index();
  for (int round = 0; round < rounds; ++round) {
    const unsigned int number = first + static_cast<unsigned int>(round);
    const unsigned int flag_bit = ~(number >> 1) & 1u;
    V* const slot = slots + (number & 1u) * 64 + lane;
    if (blockIdx.x == 0) {
      send_flagged(slot, say[round * 64 + lane], flag_bit);
      send_flagged(slot + 32, say[round * 64 + 32 + lane], flag_bit);
      V v[1];
      receive_flagged(v, [=](int) { return answers + lane; }, ~number & 1u, 1);
    } else {
      V v[3];
      receive_flagged(v, [=](int i) { return slot + i % 2 * 32; }, flag_bit, 2);  // the first twice
      for (int i = 0; i < 3; ++i) received[(round * 3 + i) * 32 + lane] = decode(v[i]);
      send_flagged(answers + lane, decode(v[0]), ~number & 1u);
    }
  }
}

__global__ void converse(const float4* say, float4* slots, float4* received, float4* answers,
                         unsigned int first, int rounds) {
  talk(say, slots, received, answers, first, rounds);
}

__global__ void converse_in_halves(const float4* say, uint2* slots, float4* received, uint2* answers,
                                   unsigned int first, int rounds) {
  talk(say, slots, received, answers, first, rounds);
}

// The primitives by themselves, of numbers whose lowest bits are anything: one thread, n places.
__global__ void store_and_load(const uint4* from, float4* quads, uint2* pairs, uint4* back, uint2* two,
                               unsigned int* found, int n) {
  for (int i = 0; i < n; ++i) {
    const unsigned int flag_bit = static_cast<unsigned int>(i) & 1u;
    const uint4 v = from[i];
    ptx::store_flagged(quads + i, make_float4(__uint_as_float(v.x), __uint_as_float(v.y),
                                             __uint_as_float(v.z), __uint_as_float(v.w)), flag_bit);
    ptx::store_flagged(pairs + i, make_uint2(v.x, v.y), flag_bit);
    const float4 q = ptx::load_flagged(quads + i);
    back[i] = {__float_as_uint(q.x), __float_as_uint(q.y), __float_as_uint(q.z), __float_as_uint(q.w)};
    two[i] = ptx::load_flagged(pairs + i);
    for (unsigned int asked = 0; asked < 2; ++asked) {
      unsigned int of_quad = 2u * asked, of_pair = 2u * asked;  // the other bits of `lacking` say nothing
      ptx::check_flag_bit(of_quad, quads + i, q, asked);
      ptx::check_flag_bit(of_pair, pairs + i, two[i], asked);
      found[4 * i + 2 * asked] = of_quad & 1u;
      found[4 * i + 2 * asked + 1] = of_pair & 1u;
      ptx::check_flag_bit(of_quad, quads + i, q, flag_bit);  // what lacked before lacks still
      if ((of_quad & 1u) != found[4 * i + 2 * asked]) found[4 * i + 2 * asked] = 9u;
    }
  }
}
