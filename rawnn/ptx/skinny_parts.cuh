// What the kernels of skinny.cu share: products of 16 x 16 and 16 x 8 fragments, copies into shared
// memory, and the sum of partial products over the warps of a block and the blocks of a cluster.
// Instructions of sm_80; clusters from sm_90 on.
#pragma once
#include "types.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "skinny.cu needs cp.async and mma.sync of 16 x 8 x 16: compute capability 8.0"
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define RAWNN_CLUSTERS 1
#else
#define RAWNN_CLUSTERS 0
#endif

namespace skinny {

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

__device__ __forceinline__ unsigned int shared_address(const void* pointer) {
  return static_cast<unsigned int>(__cvta_generic_to_shared(pointer));
}

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

// The first `count` of 8 elements of 16 bits (or of 4 of 32 bits), from global to shared memory,
// asynchronously; zeros for the others. count may be negative or too large.
template <typename T>
__device__ __forceinline__ void copy_async(unsigned int to, const T* from, int count) {
  constexpr int bytes = static_cast<int>(sizeof(T));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "r"(min(max(count * bytes, 0), 16))
               : "memory");
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups of copies are under way.
template <int PENDING>
__device__ __forceinline__ void arrived() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
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

// Columns `first` and up, 8 * CHUNKS of them, of `from` [rows, columns] to shared memory at `to`,
// rows `pitch` bytes apart; zeros where the matrix ends. Every thread of the block copies its part.
template <int BATCH, int CHUNKS, int THREADS, typename T>
__device__ __forceinline__ void copy_slice(unsigned int to, int pitch, const T* from, int ld,
                                           int rows, int columns, int first, int thread) {
#pragma unroll
  for (int i = thread; i < BATCH * CHUNKS; i += THREADS) {
    const int row = i / CHUNKS;
    const int column = first + i % CHUNKS * 8;
    copy_async(to + row * pitch + i % CHUNKS * 16, from + static_cast<long long>(row) * ld + column,
               row < rows ? columns - column : 0);
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
#if RAWNN_CLUSTERS
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                   "r"(bytes)
                   : "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }

  // Every block of the cluster has begun and opened its mailbox.
  __device__ __forceinline__ void opened() const {
#if RAWNN_CLUSTERS
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }

  // Writes to where `place` lies in the shared memory of block `rank` of the cluster.
  __device__ __forceinline__ void send(const float* place, int rank, float4 value) const {
#if RAWNN_CLUSTERS
    unsigned int to, counter;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(place)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(barrier), "r"(rank));
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::
            "r"(to),
        "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(counter)
        : "memory");
#endif
  }

  __device__ __forceinline__ void receive() const {
#if RAWNN_CLUSTERS
#pragma unroll 1
    for (int tries = 0; tries < 1 << 20; ++tries) {
      int done;
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
          "selp.s32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(barrier)
          : "memory");
      if (done != 0) return;
    }
    __trap();  // a block of the cluster never sent its part
#endif
  }
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
