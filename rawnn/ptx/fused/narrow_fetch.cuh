// Copies weights to the shared memory of narrow_inner.cu, layer by layer for the forward and the backward
// pass, by the copy engine or by asynchronous copies of 16 bytes.
#pragma once
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "device/copies.cuh"
#include "device/shared.cuh"
#include "primitives/types.cuh"

// The copy engine, from sm_90 on, copies whole rows and costs the warps no issue slots.
constexpr bool kHasBulk = RAWNN_ARCH >= 900;
// Waits until at most `pending` groups of this thread's copies are in flight; `pending` must be known
// when the code around it is unrolled.
__device__ __forceinline__ void await_copies(int pending) {
  switch (pending) {
    case 0: ptx::wait_for_copies<0>(); break;
    case 1: ptx::wait_for_copies<1>(); break;
    case 2: ptx::wait_for_copies<2>(); break;
    case 3: ptx::wait_for_copies<3>(); break;
    default: ptx::wait_for_copies<4>(); break;
  }
}

// A warp's copies of 16 rows of one layer's weights to shared memory, padded with zeros. One copy of the
// warp covers 64 bytes of each of 8 rows.
template <typename T, int WIDTH>
__device__ __forceinline__ void fetch(T* to, int pitch, const T* weights, int ld, int rows,
                                      int cols, int first, int lane) {
  constexpr int kChunks = WIDTH / 8;
  constexpr bool kWhole = 32 % kChunks == 0;  // rows: a copy takes 512 bytes in sequence
  constexpr int kAcross = kWhole ? kChunks : 4;
  constexpr int kDown = 32 / kAcross;
  const int row = first + lane / kAcross;
  const int col = lane % kAcross * 8;
#pragma unroll
  for (int i = 0; i < WIDTH / 16; ++i) {
    const int down = kWhole ? i * kDown : i % 2 * kDown;
    const int right = kWhole ? 0 : i / 2 * 32;
    const int left = row + down < rows ? min(max(cols - col - right, 0), 8) : 0;
    const int bytes = rows == WIDTH && cols == WIDTH ? 16 : 2 * left;
    const T* const from = bytes > 0 ? weights + (row + down) * ld + col + right : weights;
    ptx::copy_async(ptx::shared_address(to + (row + down) * pitch + col + right), from, bytes);
  }
}

// A warp's copies of 16 columns, from `first` on, of the head's weights [CLASSES, cols] to shared memory:
// 16 * TILES rows, padded with zeros.
template <int TILES, int CLASSES, typename T>
__device__ __forceinline__ void fetch_columns(T* to, int pitch, const T* weights, int ld, int cols,
                                              int first, int lane) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    const int row = 16 * tile + lane / 2;
    const int col = first + lane % 2 * 8;
    const int left = row < CLASSES ? min(max(cols - col, 0), 8) : 0;
    const T* const from = weights + (left > 0 ? row * ld + col : 0);
    ptx::copy_async(ptx::shared_address(to + row * pitch + col), from, 2 * left);
  }
}

// How often the slot of layer i was filled before it is filled for the backward pass: in the forward pass
// with each of the layers i, i + slots, ...; in the backward pass with those of them above i except the
// last.
__device__ constexpr int way_back_turn(int layer, int layers, int slots) {
  const int sharing = (layers - 1 - layer) / slots;  // layers above this one in its slot
  return (layer / slots + 1 + sharing) + sharing - 1;
}

// Copies of the weights between hidden layers to shared memory, layer i in slot i % SLOTS: each warp
// copies 16 rows, in the order in which the layers are needed; a layer may replace an earlier one.
template <typename T, typename PLAN, int WIDTH, bool WHOLE>
struct Fetcher {
  static constexpr bool kBulk = kHasBulk && WHOLE;  // every layer is WIDTH x WIDTH
  static constexpr int kBytes = WIDTH * WIDTH * static_cast<int>(sizeof(T));
  T* slots;
  unsigned long long* barriers;  // one for each slot
  int first, lane;

  __device__ __forceinline__ T* slot(int layer) const {
    return slots + layer % PLAN::kSlots * PLAN::kSlot;
  }

  __device__ __forceinline__ void begin(int thread) const {
    if constexpr (kBulk) {
      if (thread == 0) {
#pragma unroll
        for (int i = 0; i < PLAN::kResident; ++i) {
          ptx::init_barrier(ptx::shared_address(barriers + i), 1);
        }
        ptx::publish_barriers();
      }
      __syncwarp();  // racecheck attributes the initialization to all lanes
      if (thread == 0) {
#pragma unroll
        for (int i = 0; i < PLAN::kResident; ++i) {
          ptx::arrive_expecting(ptx::shared_address(barriers + i), kBytes);
        }
      }
      __syncthreads();
    }
  }

  // `again` is false while the slot has not been filled before.
  __device__ __forceinline__ void fetch_layer(int layer, bool again, const T* weights, int ld,
                                              int rows, int cols, int thread) const {
    if constexpr (kBulk) {
      const unsigned int barrier = ptx::shared_address(barriers + layer % PLAN::kSlots);
      if (again && thread == 0) ptx::arrive_expecting(barrier, kBytes);
      if (lane < 16) {
        const int row = first + lane;
        ptx::load_bulk(ptx::shared_address(slot(layer) + row * PLAN::kPitch), weights + row * ld,
                       WIDTH * static_cast<int>(sizeof(T)), barrier);
      }
    } else {
      fetch<T, WIDTH>(slot(layer), PLAN::kPitch, weights, ld, rows, cols, first, lane);
      ptx::commit_copies();
    }
  }

  // `pending`: groups of copies after this layer's; `turn`: how often the slot was filled before.
  __device__ __forceinline__ void await_layer(int layer, int pending, int turn) const {
    if constexpr (kBulk) {
      ptx::wait_for(ptx::shared_address(barriers + layer % PLAN::kSlots), turn % 2);
    } else {
      await_copies(pending);
    }
    __syncwarp();
  }
};
