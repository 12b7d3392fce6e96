// Exchange via distributed shared memory: the thread blocks of a cluster store data straight into each
// other's receive buffers (st.async). The stores count their bytes at an mbarrier of the receiver, which
// waits for it.
//
// Reuse: two receive buffers alternate, and no block waits for another to release one. A block sends exchange
// i + 2 after it has received exchange i + 1 from every block, which each of them sent after it had read its
// buffer of exchange i. Hence every block must send something to every other block (exchange.cuh).
//
// A store whose lanes address different blocks counts as several stores. So one thread sends its values to
// one block after the other.
// Limit: the one-way latency between blocks, some 600 cycles on an H200 for 16 blocks and a few KB.
#pragma once
#include "device/barriers.cuh"
#include "device/fences.cuh"
#include "persistent/exchange.cuh"

template <typename SHAPE, int FLOATS>
struct Dsmem {
  using Shape = SHAPE;

  float* buffers;         // two receive buffers of FLOATS floats
  unsigned int barriers;  // an mbarrier of each, as a shared address
  int rank;
  unsigned int exchanges;  // completed by this block; may wrap around

  __device__ __forceinline__ float* buffer() const { return buffers + (exchanges & 1) * FLOATS; }
  __device__ __forceinline__ unsigned int barrier() const { return barriers + (exchanges & 1) * 8; }

  // The block `i` behind this one, round the cluster. Unsigned: a remainder of what might be negative takes
  // more instructions.
  __device__ __forceinline__ int behind(int i) const {
    return static_cast<int>(static_cast<unsigned int>(rank + i) % SHAPE::kTpSize);
  }

  // All threads may call it.
  template <typename E>
  __device__ __forceinline__ void expect(int own) const {
    int floats = E::kRows * SHAPE::kSent + E::kFlags;
    if constexpr (E::kKind == kReduceScatter) {
      floats = E::kFlags > 0 && own == 0 ? E::kFlags : own * SHAPE::kSent * SHAPE::kTpSize;
    }
    if constexpr (E::kKind == kScatterExamples) floats = own * E::kRows * SHAPE::kTpSize;
    if (threadIdx.x == 0) ptx::arrive_expecting(barrier(), floats * 4);
  }
  template <typename E>
  __device__ __forceinline__ void send(int to, int place, const float4& v) const {
    ptx::send4_to_block(to, ptx::shared_address(buffer() + place), v, barrier());
  }
  template <typename E>
  __device__ __forceinline__ void publish(int place, const float4& v) const {
#pragma unroll
    for (int i = 0; i < SHAPE::kTpSize; ++i) send<E>(behind(i), place, v);
  }
  template <typename E, int LANES>
  __device__ __forceinline__ void publish_by_lanes(int part, int place, const float4& v) const {
#pragma unroll 1
    for (int i = part; i < SHAPE::kTpSize; i += LANES) send<E>(behind(i), place, v);
  }
  // The receiver must read it.
  __device__ __forceinline__ void send_one(int to, int place, float value) const {
    const unsigned int there = ptx::shared_address(buffer() + place);
    ptx::send(ptx::in_block(there, to), value, ptx::in_block(barrier(), to));
  }
  template <typename E>
  __device__ __forceinline__ void send_flag(int to, float value) const {
    send_one(to, first_flag<SHAPE, E>() + rank, value);
  }
  template <typename E>
  __device__ __forceinline__ void publish_flag(int index, float value) const {
    const int to = thread_index();
    if (to < SHAPE::kTpSize) send_one(to, first_flag<SHAPE, E>() + index, value);
  }
  // The buffer may be read until the next barrier of the block.
  template <typename E>
  __device__ __forceinline__ const float* wait() {
    const float* const filled = buffer();
    // Two barriers alternate: bit 0 of the number picks one, bit 1 is the parity of its phase.
    ptx::wait_for_remote(barrier(), exchanges >> 1 & 1);
    ++exchanges;
    return filled;
  }
  // The same for the first THREADS threads. The others go on, and read nothing there.
  template <typename E, int THREADS>
  __device__ __forceinline__ const float* wait_by_first() {
    const float* const filled = buffer();
    if (thread_index() < THREADS) ptx::wait_for_remote(barrier(), exchanges >> 1 & 1);
    ++exchanges;
    return filled;
  }
  template <typename E, typename F>
  __device__ __forceinline__ void recv(const float* from, int count, float* /*scratch*/, F body) const {
    add_parts<SHAPE, E::kParts, E::kRows / E::kParts, SHAPE::kSent>(from, count, body);
  }
  template <typename E>
  __device__ __forceinline__ bool flags(const float* from) const {
    const int i = thread_index();
    return i < E::kFlags && static_cast<const volatile float*>(from)[first_flag<SHAPE, E>() + i] != 0.0f;
  }
  // Every thread reads all flags, as it needs the answer.
  template <typename E>
  __device__ __forceinline__ bool any() {
    const float* const first = wait<E>() + first_flag<SHAPE, E>();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < E::kFlags; ++i) sum += first[i];
    return sum != 0.0f;
  }
  template <typename E>
  __device__ __forceinline__ const float* gather(float* /*scratch*/) {
    return wait<E>();
  }
  __device__ __forceinline__ void end_micro_batch() const {}
};
