// Exchanges between the thread blocks of a tensor-parallel group. An Exchange says what is exchanged. A
// transport says how: Dsmem (exchange_dsmem.cuh) between the blocks of a thread block cluster, ViaL2
// (exchange_l2.cuh) between any blocks that are co-resident. Both have the same methods, so the generated code
// of a step does not depend on the transport. E is an Exchange:
//
//   expect<E>(own)                   announces what this block receives; precedes every send of the exchange
//   send<E>(to, place, v)            four floats to one block, at a place of its receive buffer
//   publish<E>(place, v)             four floats to all blocks
//   publish_by_lanes<E, LANES>(part, place, v)   the same, called by LANES lanes that hold the same v
//   send_flag<E>(to, value)          the flag of this block, one number, to one block
//   publish_flag<E>(index, value)    one number to all blocks; called by all threads
//   wait<E>()                        the receive buffer, complete; ViaL2 waits where the buffer is read
//   recv<E>(buffer, count, scratch, body)   body(row, column, v) for the first `count` rows, each reduced
//   flags<E>(buffer)                 reads all flags; whether one that this thread read is not 0
//   any<E>()                         waits for all flags; whether one is not 0, the same for all threads
//   gather<E>(scratch)               waits; the received rows, which all threads may read
//   end_micro_batch()                all exchanges of a micro-batch are complete; a block barrier follows
//
// A receive buffer has rows of kSent floats. Where rows are partial sums, those of block r begin at row
// r * kShare. All blocks reduce them in the order of r, so that all get the same bits.
//
// A block that receives nothing in an exchange, or that has nothing to publish, must still take part: buffers
// are reused on the assumption that a block that has received exchange i from all others knows that they have
// read exchange i - 1. A flag stands for the missing rows (send_flags, receive_flags).
#pragma once
#include "persistent/epilogue.cuh"

enum ExchangeKind {
  kAllGather,      // every block publishes SHARE rows
  kReduceScatter,  // every block sends each block its partial sums of SHARE rows
  kAllReduce,      // one-shot: every block publishes its partial sums of all rows, of which SHARE is the number
  kScatterExamples,  // every block sends each block its partial sums of all ROWS, of SHARE examples
};

// The receive buffer has ROWS rows: PARTS partial sums of each result, or one value. SHARE rows belong to a
// block, fewer to the last blocks, and none to the last IDLE; `own` is the number of rows of this block. FLAGS
// single numbers follow the rows. In a reduce-scatter they lie at the begin of the buffer of a block without
// rows, which receives a flag from every block in place of rows. A two-shot all-reduce is a kReduceScatter whose
// epilogue publishes a kAllGather (schedule.py). Via L2, the buffer begins at float OFFSET,
// has USES writes in a micro-batch of which this is number NUMBER, and TEAMS threads share a sum.
template <ExchangeKind KIND, int ROWS, int SHARE, int PARTS, int IDLE, int FLAGS, int OFFSET, int USES,
          int NUMBER, int TEAMS>
struct Exchange {
  static constexpr ExchangeKind kKind = KIND;
  static constexpr int kRows = ROWS, kShare = SHARE, kParts = PARTS, kIdle = IDLE, kFlags = FLAGS;
  static constexpr int kOffset = OFFSET, kUses = USES, kNumber = NUMBER, kTeams = TEAMS;
};

// Where the flags begin in a receive buffer.
template <typename SHAPE, typename E>
__device__ __forceinline__ constexpr int first_flag() {
  return E::kKind == kReduceScatter ? 0 : E::kRows * SHAPE::kSent;
}

// Sends row m of the examples e .. e + 3 to the blocks that need it. Of a reduce-scatter and of scattered
// examples, m counts the rows of all blocks, of any other exchange those of this block.
template <typename E, typename T>
__device__ __forceinline__ void send_row(const T& transport, int m, int e, const float4& v) {
  if constexpr (E::kKind == kReduceScatter) {
    const int owner = m / E::kShare;
    const int row = transport.rank * E::kShare + m - owner * E::kShare;
    transport.template send<E>(owner, row * T::Shape::kSent + e, v);
  } else if constexpr (E::kKind == kScatterExamples) {
    const int owner = e / E::kShare;
    transport.template send<E>(owner, (transport.rank * E::kRows + m) * E::kShare + e - owner * E::kShare, v);
  } else {
    transport.template publish<E>((transport.rank * E::kShare + m) * T::Shape::kSent + e, v);
  }
}

// Sends flags in place of rows: a block with no `own` rows to publish sends one to every block, and every
// block sends one to each block that no row of a reduce-scatter belongs to.
template <typename E, typename T>
__device__ __forceinline__ void send_flags(const T& transport, int own) {
  constexpr int first = T::Shape::kTpSize - E::kIdle;
  if constexpr (E::kKind == kReduceScatter) {
    constexpr int threads = T::Shape::kThreads;
#pragma unroll 1
    for (int i = thread_index(); i < E::kIdle; i += threads) {
      transport.template send_flag<E>(first + i, 0.0f);
      if constexpr (E::kIdle <= threads) break;
    }
  } else {
    if (own == 0) transport.template publish_flag<E>(transport.rank - first, 0.0f);
  }
}

// Receives the flags that this block gets in place of rows.
template <typename E, typename T, typename BUFFER>
__device__ __forceinline__ void receive_flags(const T& transport, BUFFER buffer, int own) {
  if (E::kKind != kReduceScatter || own == 0) transport.template flags<E>(buffer);
}
