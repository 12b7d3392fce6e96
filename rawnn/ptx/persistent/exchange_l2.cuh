// The exchange of blocks that are no cluster: through global memory, which the L2 cache holds. Any
// number of blocks that run at once can share layers so. What all of a group want is written once,
// to a place that they have in common; partial sums go to a place of the block that adds them up.
//
// Nothing is fenced: what is sent carries marks (onchip_marks.cuh), and who wants it looks until it
// has come. Messages of the same form lie in the same place the one behind the other, as often in each turn,
// so that the mark of a place changes each time that it is written. The turns' number goes on from
// launch to launch, and may wrap around; boxes are zero at first, where the first mark is 1.
//
// A message may lie where the one ahead of the one ahead of it did, which every block has read: who
// sends it has had a part of the message between from all whom it sends to, or from the block that adds
// up what they all sent it, and they had read the one before ahead of sending that. (Sums are told ahead
// of a barrier, but of numbers that have all been read.) So every block must have a part for every other:
// one that has no features of a gathered boundary sends four floats that say nothing else, and gets such
// from each where it has nothing to receive. A turn's only message has two boxes that take turns.
//
// Limit: one way through the L2 cache, and how much of it all that is exchanged takes. Where each message
// had two places of its own, 54 MB in all, what was looked for was no longer in the cache.
#pragma once
#include "persistent/flag_bits.cuh"

// `boxes` are those of this group: two of FLOATS floats, or one where that is 0. In a turn MESSAGES lie
// in a place, of which this one sends and hears that with the NUMBER.
template <typename SHAPE, long long FLOATS, int MESSAGES = 1, int NUMBER = 0>
struct FarMail {
  float* boxes;
  int rank;
  unsigned int& exchanged;

  __device__ __forceinline__ float4* at(int place) const {
    return reinterpret_cast<float4*>(boxes + (exchanged & 1) * FLOATS + place);
  }
  __device__ __forceinline__ unsigned int mark() const {
    return ~(FLOATS > 0 ? exchanged >> 1 : exchanged * MESSAGES + NUMBER) & 1;
  }
  // For the messages of another place.
  template <int MANY, int WHICH>
  __device__ __forceinline__ FarMail<SHAPE, FLOATS, MANY, WHICH> of() const {
    return {boxes, rank, exchanged};
  }
  // Four neighbouring floats.
  __device__ __forceinline__ void send(int place, float4 v) const {
    tell(at(place), v, mark());
  }
  // One number, as four.
  __device__ __forceinline__ void send_one(int place, float value) const {
    send(place, make_float4(value, 0.0f, 0.0f, 0.0f));
  }
  // COUNT numbers that were sent so, the one behind the other, which threads share: whether one that
  // this thread has heard is not 0.
  template <int COUNT>
  __device__ __forceinline__ bool any(int place) const {
    bool found = false;
#pragma unroll 1
    for (int i = thread_index(); i < COUNT; i += SHAPE::kThreads) {
      float4 v[1];
      take(v, place, [=](int) { return i; });
      found = found || v[0].x != 0.0f;
      if constexpr (COUNT <= SHAPE::kThreads) break;
    }
    return found;
  }
  // The quads at(place)[quad(0)] to at(place)[quad(MANY - 1)].
  template <int MANY, typename P>
  __device__ __forceinline__ void take(float4 (&v)[MANY], int place, P quad) const {
    const float4* const from = at(place);
    hear(v, [=](int i) { return from + quad(i); }, mark(), kExchange);
  }
  static constexpr int kExchange = 3;  // the name of the wait
};

// Quads that a thread has under way. Where there are fewer, it asks for the first again and leaves what
// comes: with a branch around each load some fifteen instructions lay between two.
constexpr int kAskedFor = 8;

// The first `count` of ROWS rows at a place: body(row, column, four values).
template <typename SHAPE, int ROWS, typename MAIL, typename F>
__device__ __forceinline__ void take_received(const MAIL& mail, int place, int count, F body) {
  constexpr int across = SHAPE::kSent / 4;
  constexpr int each = smaller(ceil_div(ROWS * across, SHAPE::kThreads), kAskedFor);
  const int all = count * across;
#pragma unroll 1
  for (int first = thread_index(); first < all; first += each * SHAPE::kThreads) {
    float4 values[each];
    mail.take(values, place, [=](int i) {
      const int item = first + i * SHAPE::kThreads;
      return item < all ? item : first;
    });
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int item = first + i * SHAPE::kThreads;
      if (item < all) body(item / across, item % across * 4, values[i]);
    }
    if constexpr (ROWS * across <= each * SHAPE::kThreads) break;
  }
}

// The same where each is the sum of PARTS parts, which lie ROWS rows apart. TEAMS threads share a sum:
// each adds up every TEAMS-th part in their order, and where they are several one adds up their sums,
// which they leave in `scratch`, ROWS rows of each. So neighbours ask for what lies side by side.
template <typename SHAPE, int PARTS, int ROWS, int TEAMS, typename MAIL, typename F>
__device__ __forceinline__ void add_received(const MAIL& mail, int place, int count,
                                             float* scratch, F body) {
  constexpr int across = SHAPE::kSent / 4;
  constexpr int items = ROWS * across;
  constexpr int parts = ceil_div(PARTS, TEAMS);
  constexpr int each = smaller(parts, kAskedFor);
  const int all = count * across;
#pragma unroll 1
  for (int i = thread_index(); i < items * TEAMS; i += SHAPE::kThreads) {
    const int item = i % items;
    const int team = i / items;
    if (item < all) {
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
      for (int first = team; first < PARTS; first += each * TEAMS) {
        float4 values[each];
        mail.take(values, place, [=](int k) {
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
    if constexpr (items * TEAMS <= SHAPE::kThreads) break;
  }
  if constexpr (TEAMS > 1) {
    __syncthreads();
#pragma unroll 1
    for (int item = thread_index(); item < all; item += SHAPE::kThreads) {
      float4 sum = *reinterpret_cast<const float4*>(scratch + item * 4);
#pragma unroll
      for (int team = 1; team < TEAMS; ++team) {
        const float4 v = *reinterpret_cast<const float4*>(scratch + (team * items + item) * 4);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      body(item / across, item % across * 4, sum);
      if constexpr (items <= SHAPE::kThreads) break;
    }
  }
}
