// What the blocks of a cluster hand to each other: every block sends what others need straight into
// their mailbox, by stores that count their bytes at a barrier there (st.async), and waits for what
// it needs itself. No block waits for another's turn: two mailboxes take turns, and whoever sends
// the exchange after the next has had this block's part of the next, sent once its mailbox was read.
// So every block must have a part for every other: one that has no features of a gathered boundary
// sends a float that says nothing else, and gets one from each where it has nothing to receive.
//
// A mailbox holds rows of kSent floats. Where partial sums are sent, those of rank r begin at row
// r * ROWS; they are added up in the order of the ranks (add_parts), so that all get the same bits.
// A store whose lanes send to different blocks counts as several: sums that lanes shared, each of which
// sent to some of the blocks, took 9 to 44 % longer than those of one thread that sends to one block
// behind the other (H200, 16 blocks).
// Limit: one way from block to block, some 600 cycles on an H200 for 16 blocks and a few KB.
#pragma once
#include "device/barriers.cuh"
#include "device/fences.cuh"
#include "persistent/block.cuh"

template <typename SHAPE, int FLOATS>
struct Mailboxes {
  float* first;           // two of FLOATS floats
  unsigned int barriers;  // two barriers, as a shared address
  int rank;
  unsigned int exchanges;  // that have been waited for; may wrap around

  __device__ __forceinline__ float* box() const { return first + (exchanges & 1) * FLOATS; }
  __device__ __forceinline__ unsigned int barrier() const { return barriers + (exchanges & 1) * 8; }

  // Says how many bytes will come; all threads may call it.
  __device__ __forceinline__ void expect(int bytes) const {
    if (threadIdx.x == 0) ptx::arrive_expecting(barrier(), bytes);
  }
  // Four neighbouring floats to the same place of one rank's mailbox, or of all.
  __device__ __forceinline__ void send(int to, int place, float4 values) const {
    const unsigned int there = ptx::shared_address(box() + place);
    ptx::send4(ptx::in_block(there, to), values, ptx::in_block(barrier(), to));
  }
  // One float; what is sent must be read.
  __device__ __forceinline__ void send_one(int to, int place, float value) const {
    const unsigned int there = ptx::shared_address(box() + place);
    ptx::send(ptx::in_block(there, to), value, ptx::in_block(barrier(), to));
  }
  __device__ __forceinline__ void send_to_all(int place, float4 values) const {
#pragma unroll
    for (int i = 0; i < SHAPE::kRanks; ++i) send((rank + i) % SHAPE::kRanks, place, values);
  }
  // Returns the mailbox, filled. It is read until the next barrier of the block.
  __device__ __forceinline__ const float* receive() {
    const float* const filled = box();
    ptx::wait_for_remote(barrier(), exchanges >> 1 & 1);
    ++exchanges;
    return filled;
  }
};

// Reads `count` floats that say nothing but that they came: what is sent must be read.
__device__ __forceinline__ void hear(const float* mailbox, int count) {
  const int i = thread_index();
  if (i < count) static_cast<void>(*static_cast<const volatile float*>(mailbox + i));
}
