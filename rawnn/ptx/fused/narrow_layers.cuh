// The memory layout of narrow_inner.cu in shared memory, and products of a layer's weights with 8 rows
// of the batch.
#pragma once
#include "primitives/common.cuh"
#include "device/products.cuh"
#include "device/shared.cuh"

constexpr int kRows = 8;  // batch rows of a block of narrow_inner

// The layout of the shared memory of narrow_inner.
template <int DEPTH, int WIDTH, int SLOTS, int CLASSES>
struct Inner {
  static constexpr int kWarps = WIDTH / 16;  // one for each 16 features of a hidden layer
  static constexpr int kPitch = WIDTH + 8;   // of weights: rows differ by 16 bytes modulo 128
  static constexpr int kLayers = DEPTH - 2;  // between two hidden layers
  static constexpr int kResident = kLayers < SLOTS ? kLayers : SLOTS;
  static constexpr int kSlots = kResident > 0 ? kResident : 1;
  static constexpr int kHeadTiles = (CLASSES + 15) / 16;
  static constexpr int kHeadRows = 16 * kHeadTiles;
  static constexpr int kScorePitch = kHeadRows + 4;
  static constexpr int kSlot = WIDTH * kPitch;                 // elements of a layer's weights
  static constexpr int kHead = kResident * kSlot;              // elements before the head's weights
  static constexpr int kVectors = kHead + kHeadRows * kPitch;  // before the exchange buffers
  static constexpr int kVector = WIDTH * kRows;                // elements of one
  static constexpr int kGradient = kVectors + 2 * kVector;     // before the head's gradient
  static constexpr int kElements = kGradient + kHeadRows * kRows;
  static constexpr int kBytes = 2 * kElements + 4 * kWarps * kRows * kScorePitch;
};
// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
template <bool TRANSPOSED, typename T>
__device__ __forceinline__ void load_fragments(unsigned int (&words)[4], const T* row) {
  ptx::load_matrices<TRANSPOSED>(words, ptx::shared_address(row));
}
// Rows `first` to first + 15 of weights in shared memory as left operands or, TRANSPOSED, these columns
// as rows of the transpose.
template <bool TRANSPOSED, int TILES, typename T>
__device__ __forceinline__ void load_weights(unsigned int (&words)[TILES][4], const T* weights,
                                             int pitch, int first, int lane) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    if constexpr (TRANSPOSED) {
      const int row = 16 * tile + lane / 16 * 8 + lane % 8;
      load_fragments<true>(words[tile], weights + row * pitch + first + lane / 8 % 2 * 8);
    } else {
      load_fragments<false>(words[tile],
                           weights + (first + lane % 16) * pitch + 16 * tile + lane / 16 * 8);
    }
  }
}

// [16, 16 * TILES] times [16 * TILES, 8]; the latter is in shared memory as rows of 8 elements.
template <int TILES, typename T>
__device__ __forceinline__ void product(float (&sum)[4], const unsigned int (&weights)[TILES][4],
                                        const T* vectors, int lane) {
  constexpr int kPairs = TILES / 2;
  constexpr int kAtOnce = kPairs < 4 ? kPairs : 4;  // loads issued before their products
  float odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
#pragma unroll
  for (int first = 0; first < kPairs; first += kAtOnce) {
    unsigned int words[kAtOnce][4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < kPairs) {
        load_fragments<true>(words[i], vectors + (32 * (first + i) + lane) * kRows);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < kPairs) {
        const int tile = 2 * (first + i);
        ptx::multiply<T>(sum, weights[tile], words[i][0], words[i][1]);
        ptx::multiply<T>(odd, weights[tile + 1], words[i][2], words[i][3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] += odd[i];
}

// The sum of the SPLITS feature groups' contributions to pre-activations `feature` and `feature` + 8 of
// the first layer, of SIZE, for two rows of the batch from `column` on.
template <int SIZE, int SPLITS>
__device__ __forceinline__ void load_shares(float2 (&parts)[SPLITS][2], const float* partial,
                                            int ld, int feature, int column) {
#pragma unroll
  for (int i = 0; i < 2 * SPLITS; ++i) {
    const int at = feature + i % 2 * 8;
    float2 pair = make_float2(0.0f, 0.0f);
    if (at < SIZE && column < ld) {
      pair = *reinterpret_cast<const float2*>(partial + (i / 2 * SIZE + at) * ld + column);
    }
    parts[i / 2][i % 2] = pair;
  }
}
