// Exchange via L2: the thread blocks of a tensor-parallel group that is not a cluster exchange data through
// global memory. The group can have any number of co-resident blocks. Data for all blocks is written once, to
// a receive buffer that they share. Partial sums go to a receive buffer of the block that reduces them.
//
// Synchronisation: there are no fences and no separate flags. Every 16-byte store carries a flag bit
// (flag_bits.cuh), and the receiver polls the data until the bit has the expected value. The bit is the
// parity of the number of writes to the buffer, so it changes with every write. The count of micro-batches
// continues from launch to launch and may wrap around. Buffers are zero at first; the first flag bit is 1.
//
// Reuse: exchanges of one shape share a receive buffer. Exchange i may use the buffer of exchange i - 2, but
// not that of i - 1. Reason: a block sends i after it has received i - 1 from every block that it sends to,
// or from the block that reduced their partial sums; each of them had read i - 2 before it sent i - 1.
// (Partial sums are sent before the block barrier that follows i - 1, but they depend on all of it.) Hence
// every block must send something to every other block (exchange.cuh). A micro-batch with a single
// exchange alternates between two buffers.
//
// Limit: the one-way latency of L2, and the footprint of all receive buffers, which must stay in L2.
#pragma once
#include "persistent/flag_bits.cuh"
#include "persistent/exchange.cuh"

// Loads of 16 bytes that a thread has in flight. A thread with fewer items loads its first item again and
// drops the result: a branch around each load would put some fifteen instructions between two loads.
constexpr int kLoadsInFlight = 8;

// Polls the first `count` of ROWS rows at a place: body(row, column, four values).
template <typename E, int ROWS, typename T, typename F>
__device__ __forceinline__ void poll_rows(const T& transport, int place, int count, F body) {
  using Shape = typename T::Shape;
  constexpr int across = Shape::kSent / 4;
  constexpr int each = smaller(ceil_div(ROWS * across, Shape::kThreads), kLoadsInFlight);
  const int all = count * across;
#pragma unroll 1
  for (int first = thread_index(); first < all; first += each * Shape::kThreads) {
    float4 values[each];
    transport.template poll<E>(values, place, [=](int i) {
      const int item = first + i * Shape::kThreads;
      return item < all ? item : first;
    });
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int item = first + i * Shape::kThreads;
      if (item < all) body(item / across, item % across * 4, values[i]);
    }
    if constexpr (ROWS * across <= each * Shape::kThreads) break;
  }
}

// The same where each row is the sum of PARTS partial sums, which lie ROWS rows apart. TEAMS threads share a
// sum. Each adds every TEAMS-th part in ascending order. If TEAMS > 1, they leave their sums in `scratch`,
// ROWS rows of each, and one thread adds those. So neighbouring threads load neighbouring quads.
template <typename E, int PARTS, int ROWS, int TEAMS, typename T, typename F>
__device__ __forceinline__ void poll_sums(const T& transport, int place, int count, float* scratch, F body) {
  using Shape = typename T::Shape;
  constexpr int across = Shape::kSent / 4;
  constexpr int items = ROWS * across;
  constexpr int parts = ceil_div(PARTS, TEAMS);
  constexpr int each = smaller(parts, kLoadsInFlight);
  const int all = count * across;
#pragma unroll 1
  for (int i = thread_index(); i < items * TEAMS; i += Shape::kThreads) {
    const int item = i % items;
    const int team = i / items;
    if (item < all) {
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
      for (int first = team; first < PARTS; first += each * TEAMS) {
        float4 values[each];
        transport.template poll<E>(values, place, [=](int k) {
          const int part = first + k * TEAMS;
          return (part < PARTS ? part : first) * items + item;
        });
#pragma unroll
        for (int k = 0; k < each; ++k) {
          if (first + k * TEAMS >= PARTS) break;
          sum.x += values[k].x, sum.y += values[k].y, sum.z += values[k].z, sum.w += values[k].w;
        }
        if constexpr (parts == each) break;
      }
      if constexpr (TEAMS == 1) {
        body(item / across, item % across * 4, sum);
      } else {
        *reinterpret_cast<float4*>(scratch + i * 4) = sum;
      }
    }
    if constexpr (items * TEAMS <= Shape::kThreads) break;
  }
  if constexpr (TEAMS > 1) {
    static_assert(items * TEAMS <= Shape::kThreads, "a thread has one sum at most");
    __syncthreads();
    const int item = thread_index();
    if (item < all) {
      float4 sum = *reinterpret_cast<const float4*>(scratch + item * 4);
#pragma unroll
      for (int team = 1; team < TEAMS; ++team) {
        const float4 v = *reinterpret_cast<const float4*>(scratch + (team * items + item) * 4);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      body(item / across, item % across * 4, sum);
    }
  }
}

// `buffers` are those of this group: two of FLOATS floats that alternate, or one if FLOATS is 0.
template <typename SHAPE, long long FLOATS>
struct ViaL2 {
  using Shape = SHAPE;

  float* buffers;
  int rank;
  unsigned int micro_batch;  // counted since the buffers were zero; may wrap around

  static constexpr int kExchange = 3;  // the name of the wait

  // Where the receive buffer of block `of` begins. Only partial sums have a buffer for each block.
  template <typename E>
  static __device__ __forceinline__ int buffer_of(int of) {
    return E::kOffset + (E::kKind == kReduceScatter ? of * E::kRows * SHAPE::kSent : 0);
  }
  __device__ __forceinline__ float4* at(int place) const {
    return reinterpret_cast<float4*>(buffers + (micro_batch & 1) * FLOATS + place);
  }
  template <typename E>
  __device__ __forceinline__ unsigned int flag_bit() const {
    return ~(FLOATS > 0 ? micro_batch >> 1 : micro_batch * E::kUses + E::kNumber) & 1;
  }
  template <typename E>
  __device__ __forceinline__ void store(int place, const float4& v) const {
    send_flagged(at(place), v, flag_bit<E>());
  }
  // The quads at(place)[quad(0)] to at(place)[quad(MANY - 1)], once all of them have arrived.
  template <typename E, int MANY, typename P>
  __device__ __forceinline__ void poll(float4 (&v)[MANY], int place, P quad) const {
    const float4* const from = at(place);
    receive_flagged(v, [=](int i) { return from + quad(i); }, flag_bit<E>(), kExchange);
  }

  template <typename E>
  __device__ __forceinline__ void expect(int /*own*/) const {}
  template <typename E>
  __device__ __forceinline__ void send(int to, int place, const float4& v) const {
    store<E>(buffer_of<E>(to) + place, v);
  }
  template <typename E>
  __device__ __forceinline__ void publish(int place, const float4& v) const {
    send<E>(rank, place, v);
  }
  template <typename E, int LANES>
  __device__ __forceinline__ void publish_by_lanes(int part, int place, const float4& v) const {
    if (part == 0) publish<E>(place, v);
  }
  // A flag takes a quad.
  template <typename E>
  __device__ __forceinline__ void send_flag(int to, float value) const {
    send<E>(to, first_flag<SHAPE, E>() + rank * 4, make_float4(value, 0.0f, 0.0f, 0.0f));
  }
  template <typename E>
  __device__ __forceinline__ void publish_flag(int index, float value) const {
    if (thread_index() == 0) {
      publish<E>(first_flag<SHAPE, E>() + index * 4, make_float4(value, 0.0f, 0.0f, 0.0f));
    }
  }
  template <typename E>
  __device__ __forceinline__ int wait() const {
    return buffer_of<E>(rank);
  }
  template <typename E, typename F>
  __device__ __forceinline__ void recv(int buffer, int count, float* scratch, F body) const {
    if constexpr (E::kParts == 1) {
      poll_rows<E, E::kRows>(*this, buffer, count, body);
    } else {
      poll_sums<E, E::kParts, E::kRows / E::kParts, E::kTeams>(*this, buffer, count, scratch, body);
    }
  }
  template <typename E>
  __device__ __forceinline__ bool flags(int buffer) const {
    bool found = false;
#pragma unroll 1
    for (int i = thread_index(); i < E::kFlags; i += SHAPE::kThreads) {
      float4 v[1];
      poll<E>(v, buffer + first_flag<SHAPE, E>(), [=](int) { return i; });
      found = found || v[0].x != 0.0f;
      if constexpr (E::kFlags <= SHAPE::kThreads) break;
    }
    return found;
  }
  template <typename E>
  __device__ __forceinline__ bool any() const {
    return __syncthreads_or(flags<E>(wait<E>()) ? 1 : 0) != 0;
  }
  // Copies the rows to `scratch`.
  template <typename E>
  __device__ __forceinline__ const float* gather(float* scratch) const {
    recv<E>(wait<E>(), E::kRows, nullptr, [=](int row, int column, const float4& v) {
      *reinterpret_cast<float4*>(scratch + row * SHAPE::kSent + column) = v;
    });
    __syncthreads();
    return scratch;
  }
  __device__ __forceinline__ void end_micro_batch() { ++micro_batch; }
};
