// What the kernels of skinny.cu share: products of 16 x 16 and 16 x 8 fragments, and the sum of
// partial products over the warps of a block and the blocks of a cluster. sm_90 and later.
#pragma once
#include "bulk.cuh"
#include "types.cuh"

namespace skinny {

constexpr int kDeepestRing = 16;  // slots

template <typename T>
struct IsBfloat16 {
  static constexpr bool value = false;
};
template <>
struct IsBfloat16<bfloat16> {
  static constexpr bool value = true;
};

// d += a b for 16-bit T; the fragments are those of mma.sync.m16n8k16.
template <typename T>
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned int (&a)[4], unsigned int b0,
                                         unsigned int b1) {
  if constexpr (IsBfloat16<T>::value) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

using bulk::shared_address;

// Four 8 x 8 tiles of 16-bit elements; lane l gives the address of row l % 8 of tile l / 8.
template <bool TRANSPOSE>
__device__ __forceinline__ void load_tiles(unsigned int (&tiles)[4], unsigned int address) {
  if constexpr (TRANSPOSE) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(address)
                 : "memory");
  }
}

template <int WORDS>
__device__ __forceinline__ void load_shared(unsigned int (&words)[WORDS], unsigned int from) {
  if constexpr (WORDS == 4) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
  } else {
    static_assert(WORDS == 2, "8 or 16 bytes");
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(from)
                 : "memory");
  }
}

template <int WORDS>
__device__ __forceinline__ void store_shared(unsigned int to, const unsigned int (&words)[WORDS]) {
  if constexpr (WORDS == 4) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  } else {
    static_assert(WORDS == 2, "8 or 16 bytes");
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(to), "r"(words[0]), "r"(words[1])
                 : "memory");
  }
}

// Parts of sums that the blocks of a cluster send each other: `receive` returns once all bytes that
// `open` was told of are there. They are sent as asynchronous stores that count themselves, which
// spares the fence of all memory that a cluster barrier's release is.
struct Mailbox {
  unsigned int barrier;

  // All threads of the block call it; `opened` comes before the first `send`.
  __device__ __forceinline__ void open(unsigned long long* place, int bytes) {
    barrier = shared_address(place);
    if (threadIdx.x == 0) {
      bulk::init(barrier, 1);
      bulk::publish_barriers();
    }
    __syncwarp();  // racecheck takes the initialisation for that of all lanes
    if (threadIdx.x == 0) bulk::arrive_expecting(barrier, bytes);
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }

  // Every block of the cluster has begun and opened its mailbox.
  __device__ __forceinline__ void opened() const {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }

  // Writes to where `place` lies in the shared memory of block `rank` of the cluster.
  __device__ __forceinline__ void send(const float* place, int rank, float4 value) const {
    unsigned int to, counter;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(place)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(barrier), "r"(rank));
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::
            "r"(to),
        "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(counter)
        : "memory");
  }

  __device__ __forceinline__ void receive() const { bulk::wait(barrier, 0); }
};

__device__ __forceinline__ void add(float4& sum, const float* part) {
  const float4 value = *reinterpret_cast<const float4*>(part);
  sum.x += value.x;
  sum.y += value.y;
  sum.z += value.z;
  sum.w += value.w;
}

// Sums part [SLOTS][BATCH][M + 4] of all blocks of the cluster in a fixed order. Each quad of sums
// goes to store(row, column, sum, fetched) in one thread, where `fetched` is what fetch(row,
// column) returned: reads of memory that then overlap the exchange. Block `rank` has columns rank *
// M / splits and up. `inbox` is [splits][BATCH][M / splits], written by other blocks as soon as
// they are through: it must not overlap anything else. M and splits are powers of two, M >= 4 *
// splits.
template <int M, int BATCH, int SLOTS, int THREADS, typename Fetch, typename Store>
__device__ __forceinline__ void add_up(const float* part, float* inbox, int splits, int rank,
                                       const Mailbox& mailbox, Fetch fetch, Store store) {
  constexpr int pitch = M + 4;
  constexpr int quads = BATCH * M / 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int cut = __ffs(splits) - 1;
  const int width = __ffs(M) - 1 - cut;  // of a block's own columns, as a power of two
  const auto own = [&](int row, int column) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) add(sum, part + (slot * BATCH + row) * pitch + column);
    return sum;
  };
  __syncthreads();
  if (splits > 1) {
    mailbox.opened();
#pragma unroll 1
    for (int i = thread; i < quads; i += THREADS) {
      const int row = i / (M / 4);
      const int column = i % (M / 4) * 4;
      const int owner = column >> width;
      mailbox.send(inbox + ((rank * BATCH + row) << width) + column - (owner << width), owner,
                   own(row, column));
    }
  }
#pragma unroll 1
  for (int i = thread; i < quads >> cut; i += THREADS) {
    const int row = (4 * i) >> width;
    const int column = (4 * i) & ((1 << width) - 1);
    const auto fetched = fetch(row, (rank << width) + column);
    float4 sum;
    if (splits > 1) {
      mailbox.receive();
      sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int from = 0; from < splits; ++from) {
        add(sum, inbox + ((from * BATCH + row) << width) + column);
      }
    } else {
      sum = own(row, column);
    }
    store(row, (rank << width) + column, sum, fetched);
  }
}

}  // namespace skinny
