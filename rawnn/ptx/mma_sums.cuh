// From the sums in the registers of a block's warps to its epilogue, through shared memory: parts
// of the inner dimension, of other warps and of the other blocks of a cluster, are added up in a
// fixed order, and the threads then take four neighbouring columns each. Shared by all main loops of
// product_kernels.cuh.
//
// Each block of a cluster finishes some rows of the tile. A block adds up its own warps' parts and
// sends the rows that another finishes to that one's inbox, which nothing else uses: what arrives
// counts its bytes at a barrier there, which spares the fence of all memory that the release of a
// cluster's barrier is, and nobody reads what is far away.
#pragma once
#include "device/barriers.cuh"
#include "device/cluster.cuh"
#include "mma_copy.cuh"

// The stages of the inner dimension that are this block's.
template <typename TILE>
struct Share {
  int begin = 0;
  int stages;
  __device__ __forceinline__ explicit Share(int all) : stages(all) {
    if constexpr (TILE::kCluster > 1) {
      const int rank = static_cast<int>(ptx::cluster_rank());
      begin = all * rank / TILE::kCluster;
      stages = all * (rank + 1) / TILE::kCluster - begin;
    }
  }
};

// A block's sums in shared memory: one part for every warp along the inner dimension, each
// [BM, BN + 8], where column BN holds the sums of the bias. Eight words of padding: a fragment's
// eight rows then lie in different banks. In a cluster an inbox lies behind the parts and OPERANDS
// bytes of tiles: [CLUSTER, kRows, BN + 8], the rows that this block finishes from every block, and
// behind it the barrier that counts them. With OPERANDS of 0 both take the place of tiles, and are
// open once their block is done with them.
template <typename TILE, int OPERANDS>
struct Sums {
  static constexpr int kPitch = TILE::kN + 8;
  static constexpr int kPart = TILE::kM * kPitch;
  static constexpr int kBytes = TILE::kWarpsK * kPart * static_cast<int>(sizeof(float));
  static constexpr int kInbox = kBytes > OPERANDS ? kBytes : OPERANDS;  // where it begins
  static constexpr int kRows =  // that this block finishes
      (TILE::kM + TILE::kCluster - 1) / TILE::kCluster;
  static constexpr int kInRow = TILE::kN / 4;
  static constexpr int kQuads = kRows * kInRow;
  static constexpr int kPasses = (kQuads + TILE::kThreads - 1) / TILE::kThreads;

  int first;  // row of the tile
  __device__ __forceinline__ Sums() {
    first = TILE::kCluster == 1 ? 0 : static_cast<int>(ptx::cluster_rank()) * kRows;
  }

  __device__ __forceinline__ bool inside(int pass, int thread) const {
    if (kQuads % TILE::kThreads != 0 && thread + pass * TILE::kThreads >= kQuads) return false;
    return TILE::kM % TILE::kCluster == 0 || row(pass, thread) < TILE::kM;
  }
  __device__ __forceinline__ int row(int pass, int thread) const {
    return first + (thread + pass * TILE::kThreads) / kInRow;
  }
  static __device__ __forceinline__ int column(int pass, int thread) {
    return (thread + pass * TILE::kThreads) % kInRow * 4;
  }

  // Opens the inbox, ahead of everything else where nothing else lies in it.
  template <bool BIAS>
  __device__ __forceinline__ void open(bool biased, int thread) const {
    if constexpr (TILE::kCluster > 1) {
      if (thread == 0) {
        ptx::init_barrier(counter(), 1);
        ptx::publish_barriers();
        const int rows = min(kRows, TILE::kM - first);
        const int row_bytes = (TILE::kN + (BIAS && biased ? 1 : 0)) * 4;
        if (rows > 0) ptx::arrive_expecting(counter(), TILE::kCluster * rows * row_bytes);
      }
      __syncwarp();
      if constexpr (OPERANDS == 0) {
        ptx::arrive_at_cluster();  // and this block is done with what lay there
      } else {
        ptx::arrive_at_cluster_relaxed();
      }
    }
  }

  // Between the writing of the parts, at the start of dynamic shared memory, and their reading.
  template <bool BIAS>
  __device__ __forceinline__ void ready(bool biased, int thread) const {
    __syncthreads();
    if constexpr (TILE::kCluster > 1) {
      if constexpr (OPERANDS == 0) open<BIAS>(biased, thread);
      ptx::wait_for_cluster();  // all have opened their inboxes
      hand_out<BIAS>(biased, thread);
      if (first < TILE::kM) ptx::wait_for_remote(counter(), 0);
    }
  }

  // The sum of a row of op(a).
  __device__ __forceinline__ float bias(int row) const {
    float sum = 0.0f;
#pragma unroll
    for (int from = 0; from < kAdded; ++from) sum += here(from, row, TILE::kN)[0];
    return sum;
  }

  // The sums of four columns from `column` on.
  __device__ __forceinline__ void add_up(float (&values)[4], int row, int column) const {
    add<kAdded>(values, here(0, row, column), kApart);
  }

 private:
  static constexpr int kAdded = TILE::kCluster == 1 ? TILE::kWarpsK : TILE::kCluster;
  static constexpr int kApart = TILE::kCluster == 1 ? kPart : kRows * kPitch;

  __device__ __forceinline__ const float* here(int from, int row, int column) const {
    constexpr int kOffset = TILE::kCluster == 1 ? 0 : kInbox;
    return reinterpret_cast<const float*>(dynamic_shared() + kOffset) + from * kApart +
           (row - first) * kPitch + column;
  }

  template <int COUNT>
  static __device__ __forceinline__ void add(float (&values)[4], const float* from, int apart) {
    load_values<4>(values, from);
#pragma unroll
    for (int part = 1; part < COUNT; ++part) {
      float more[4];
      load_values<4>(more, from + part * apart);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] += more[i];
    }
  }

  static __device__ __forceinline__ unsigned int counter() {
    return ptx::shared_address(dynamic_shared() + kInbox) + TILE::kCluster * kApart * 4;
  }

  // Each row's sums over this block's parts go to the block that finishes the row.
  template <bool BIAS>
  static __device__ __forceinline__ void hand_out(bool biased, int thread) {
    const float* const parts = reinterpret_cast<const float*>(dynamic_shared());
    const unsigned int inbox =
        ptx::shared_address(dynamic_shared() + kInbox) + ptx::cluster_rank() * (kApart * 4);
#pragma unroll 4
    for (int quad = thread; quad < TILE::kM * kInRow; quad += TILE::kThreads) {
      const int row = quad / kInRow;
      const int column = quad % kInRow * 4;
      float values[4];
      add<TILE::kWarpsK>(values, parts + row * kPitch + column, kPart);
      ptx::send4(place(inbox, row, column),
                 make_float4(values[0], values[1], values[2], values[3]), counter_of(row));
    }
    if constexpr (BIAS) {
      if (!biased) return;
      for (int row = thread; row < TILE::kM; row += TILE::kThreads) {
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < TILE::kWarpsK; ++part) {
          sum += parts[part * kPart + row * kPitch + TILE::kN];
        }
        ptx::send(place(inbox, row, TILE::kN), sum, counter_of(row));
      }
    }
  }
  static __device__ __forceinline__ unsigned int counter_of(int row) {
    return ptx::in_block(counter(), static_cast<unsigned int>(row / kRows));
  }
  static __device__ __forceinline__ unsigned int place(unsigned int inbox, int row, int column) {
    return ptx::in_block(inbox + (row % kRows * kPitch + column) * 4,
                         static_cast<unsigned int>(row / kRows));
  }
};

// A block's epilogue. Where rows allow it, what it reads from memory is fetched while the product is
// computed, if no more than EARLY bytes have to wait in registers; else some passes at a time, the
// first of them while the parts meet: one trip to memory for each pass would take as long as all
// else. Otherwise it works element by element, in a loop: less code.
template <typename TILE, typename EPILOGUE, typename PARTS, int EARLY = 128>
struct Finish {
  using Fetched = typename EPILOGUE::Fetched;
  static constexpr int kPasses = PARTS::kPasses;
  static constexpr bool kEarly = kPasses * static_cast<int>(sizeof(Fetched)) <= EARLY;

  EPILOGUE& epilogue;
  const PARTS sums;
  const int m0, n0, thread;
  const bool whole;
  static constexpr int kAtOnce = kPasses < 4 ? kPasses : 4;
  Fetched fetched[kEarly ? kPasses : 1];

  // (m0, n0): the tile's place in the result.
  __device__ __forceinline__ Finish(EPILOGUE& with, int row, int column, int index)
      : epilogue(with), m0(row), n0(column), thread(index),
        whole(with.whole()) {
    if constexpr (kEarly) {
      if (whole) fetch_some(fetched, 0);
    }
  }

  // The parts are written by all threads; all of them call this. Where `biased`, with the bias,
  // whose sums stand behind the last column of every part.
  template <bool BIAS>
  __device__ __forceinline__ void run(bool biased) {
    if constexpr (kEarly) {
      sums.template ready<BIAS>(biased, thread);
      if (whole) finish_some(fetched, 0);
    } else {
      Fetched some[kAtOnce];
      if (whole) fetch_some(some, 0);
      sums.template ready<BIAS>(biased, thread);
      if (whole) {
        finish_some(some, 0);
#pragma unroll 1
        for (int first = kAtOnce; first < kPasses; first += kAtOnce) {
          fetch_some(some, first);
          finish_some(some, first);
        }
      }
    }
    if (!whole) {
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        if (takes_part(pass)) finish<false>(pass, fetch_of<false>(pass));
      }
    }
    if constexpr (BIAS) {
      if (biased) {
        for (int row = sums.first + thread; row < min(sums.first + PARTS::kRows, TILE::kM);
             row += TILE::kThreads) {
          epilogue.store_bias(m0 + row, sums.bias(row));
        }
      }
    }
    if constexpr (EPILOGUE::kReports) epilogue.report();
  }

 private:
  __device__ __forceinline__ bool takes_part(int pass) const {
    return EPILOGUE::kTogether || sums.inside(pass, thread);
  }
  // Of the result; behind its last where the thread only takes part.
  __device__ __forceinline__ int row_of(int pass) const {
    return !EPILOGUE::kTogether || sums.inside(pass, thread) ? m0 + sums.row(pass, thread)
                                                             : epilogue.m;
  }

  template <bool WHOLE>
  __device__ __forceinline__ Fetched fetch_of(int pass) const {
    return epilogue.template fetch<WHOLE>(row_of(pass), n0 + sums.column(pass, thread));
  }
  // N passes from `first` on, those of them that there are.
  template <int N>
  __device__ __forceinline__ void fetch_some(Fetched (&some)[N], int first) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + i < kPasses && takes_part(first + i)) some[i] = fetch_of<true>(first + i);
    }
  }
  template <int N>
  __device__ __forceinline__ void finish_some(const Fetched (&some)[N], int first) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + i < kPasses && takes_part(first + i)) finish<true>(first + i, some[i]);
    }
  }

  template <bool WHOLE>
  __device__ __forceinline__ void finish(int pass, const Fetched& found) {
    const int row = row_of(pass);
    const int column = sums.column(pass, thread);
    float values[4] = {};
    if (!EPILOGUE::kTogether || sums.inside(pass, thread)) {
      sums.add_up(values, sums.row(pass, thread), column);
    }
    epilogue.template store<WHOLE>(row, n0 + column, values, found);
  }
};
