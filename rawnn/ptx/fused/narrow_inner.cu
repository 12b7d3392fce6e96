// narrow_inner: all layers of a network of narrow layers except the first GEMM, forward and backward,
// between narrow_input and narrow_update (narrow.cu, which gives the shapes).
//
//   a1 = ACTIVATION(sum of partial over the SPLITS shares + b1), al likewise from a(l-1) and cl;
//   p = softmax of the last layer; activations = a1 .., gradients = dz1 .. for the mean
//   cross-entropy with labels [N]; row_p[r] = p[r, label], or its logarithm where that is below
//   FLT_MIN, NaN if the label is no class; row_correct[r] = 1 if the first maximum is at the label, else 0
//
// L: uint8 or int32. Biases and layers behind DEPTH may be null. ACTIVATION's slope must follow from
// its output.
// Launch: ceil(batch / 8) blocks of 2 * WIDTH threads with Inner::kBytes of dynamic shared memory
// (shared_bytes of rawnn.ptx.fused.narrow), for SLOTS layers' weights at a time.
// Limit: latency: of the first layer's sums and the weights, then of each layer and of the softmax.
#include "elementwise/activations.cuh"
#include "primitives/common.cuh"
#include "fused/narrow_fetch.cuh"
#include "fused/narrow_layers.cuh"
#include "losses/softmax.cuh"

template <typename T, typename ACTIVATION, typename L, bool ORDERED, int SPLITS, int DEPTH,
          int WIDTH, int SLOTS, int SIZE1, int SIZE2, int SIZE3, int SIZE4, int SIZE5, int SIZE6>
__global__ void __launch_bounds__(2 * WIDTH, 1)
    narrow_inner(const int* __restrict__ cursor, int offset, int stride, int batch, int ldpartial,
                 const float* partial, const int* __restrict__ order, const T* c2, const T* c3,
                 int ldc2, int ldc3, const T* c4, const T* c5, int ldc4, int ldc5, const T* c6,
                 int ldc6, int ldactivations, const float* b1, const float* b2, const float* b3,
                 const float* b4, const float* b5, const float* b6, const L* __restrict__ labels,
                 T* activations, T* gradients, int ldgradients, float* row_p,
                 int* row_correct) {
  constexpr int kSizes[] = {SIZE1, SIZE2, SIZE3, SIZE4, SIZE5, SIZE6};
  constexpr int kClasses = kSizes[DEPTH - 1];
  using Plan = Inner<DEPTH, WIDTH, SLOTS, kClasses>;
  constexpr int kTiles = WIDTH / 16;
  constexpr int kLayers = Plan::kLayers;
  T* const elements = ptx::dynamic_shared<T>();
  T* const head = elements + Plan::kHead;
  T* const vectors = elements + Plan::kVectors;
  T* const head_gradient = elements + Plan::kGradient;
  float* const scores = reinterpret_cast<float*>(elements + Plan::kElements);
  const T* const copies[] = {c2, c3, c4, c5, c6};
  const int pitches[] = {ldc2, ldc3, ldc4, ldc5, ldc6};
  const float* const biases[] = {b1, b2, b3, b4, b5, b6};

  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int first = 16 * warp;  // this warp's features
  const int thread = static_cast<int>(threadIdx.x);
  const int begin = kRows * static_cast<int>(blockIdx.x);
  const int column = begin + 2 * t;  // the batch rows whose results this lane holds
  constexpr int kOwnRows = (kRows + kTiles - 1) / kTiles;  // in the softmax

  __shared__ unsigned long long barriers[Plan::kSlots];
  constexpr bool kWhole = SIZE1 == WIDTH && (DEPTH < 3 || SIZE2 == WIDTH) &&
                          (DEPTH < 4 || SIZE3 == WIDTH) && (DEPTH < 5 || SIZE4 == WIDTH) &&
                          (DEPTH < 6 || SIZE5 == WIDTH);
  const Fetcher<T, Plan, WIDTH, kWhole> fetcher{elements, barriers, first, lane};
  fetcher.begin(thread);

  // A label takes three dependent loads, of data that no kernel before this one writes. Each is issued
  // at a point where the previous one has arrived.
  const int step = current_step(cursor, offset);
  int label[kOwnRows];
  long long at[kOwnRows];
  const auto find_examples = [&] {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      at[i] = static_cast<long long>(step) * stride + min(begin + warp + i * kTiles, batch - 1);
      if constexpr (ORDERED) at[i] = order[at[i]];
    }
  };
  const auto load_labels = [&] {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) label[i] = static_cast<int>(labels[at[i]]);
  };
  if constexpr (kProgrammatic) {
    find_examples();
    load_labels();
  }
  pdl_wait();
  pdl_trigger();

  // The first layer: the output of narrow_input or narrow_update, one partial sum for each group of
  // features.
  float2 parts[SPLITS][2];
  load_shares<SIZE1>(parts, partial, ldpartial, first + g, column);
  float shifts[DEPTH - 1][2];
#pragma unroll
  for (int i = 0; i < 2 * (DEPTH - 1); ++i) {
    const int feature = first + g + i % 2 * 8;
    const bool exists = biases[i / 2] != nullptr && feature < kSizes[i / 2];
    shifts[i / 2][i % 2] = exists ? biases[i / 2][feature] : 0.0f;
  }
  constexpr int kOwnClasses = (Plan::kHeadRows + 31) / 32;
  float head_shifts[kOwnClasses];
#pragma unroll
  for (int i = 0; i < kOwnClasses; ++i) {
    const int c = 32 * i + lane;
    const bool exists = biases[DEPTH - 1] != nullptr && c < kClasses;
    head_shifts[i] = exists ? biases[DEPTH - 1][c] : 0.0f;
  }
  __syncwarp();  // keeps these loads before those of the weights in the queue to memory
#pragma unroll
  for (int i = 0; i < Plan::kResident; ++i) {
    fetcher.fetch_layer(i, false, copies[i], pitches[i], kSizes[i + 1], kSizes[i], thread);
  }
  fetch_columns<Plan::kHeadTiles, kClasses>(head, Plan::kPitch, copies[DEPTH - 2],
                                            pitches[DEPTH - 2], kSizes[DEPTH - 2], first, lane);
  ptx::commit_copies();
  if constexpr (!kProgrammatic) find_examples();
  float z[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < SPLITS; ++i) {
    z[0] += parts[i][0].x;
    z[1] += parts[i][0].y;
    z[2] += parts[i][1].x;
    z[3] += parts[i][1].y;
  }
  if constexpr (!kProgrammatic) load_labels();

  // Forward. Each warp keeps its outputs of each layer in registers, for the slopes.
  unsigned int outputs[DEPTH - 1][2];
  unsigned int weights[kTiles][4];
#pragma unroll
  for (int i = 0; i < DEPTH - 1; ++i) {
    if (i > 0) product<kTiles>(z, weights, vectors + (i - 1) % 2 * Plan::kVector, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      outputs[i][half] = pack_pair<T>(ACTIVATION::apply(z[2 * half] + shifts[i][half]),
                                      ACTIVATION::apply(z[2 * half + 1] + shifts[i][half]));
    }
    T* const vector = vectors + i % 2 * Plan::kVector + (first + g) * kRows + 2 * t;
    *reinterpret_cast<unsigned int*>(vector) = outputs[i][0];
    *reinterpret_cast<unsigned int*>(vector + 8 * kRows) = outputs[i][1];
    T* const kept = activations + (i * WIDTH + first + g) * ldactivations + column;
    *reinterpret_cast<unsigned int*>(kept) = outputs[i][0];
    *reinterpret_cast<unsigned int*>(kept + 8 * ldactivations) = outputs[i][1];
    if (i < kLayers) {
      // Groups of copies: one for each slot, the head's, and one for each layer in a reused slot.
      const int reused = min(i, kLayers - Plan::kResident);
      const int group = i < Plan::kResident ? i : i + 1;
      fetcher.await_layer(i, Plan::kResident + reused - group, i / Plan::kSlots);
      load_weights<false>(weights, fetcher.slot(i), Plan::kPitch, first, lane);
      if (i + Plan::kSlots < kLayers) {  // no other warp reads these rows until the backward pass
        __syncwarp();
        const int next = i + Plan::kSlots;
        fetcher.fetch_layer(next, true, copies[next], pitches[next], kSizes[next + 1],
                            kSizes[next], thread);
      }
      __syncthreads();
    }
  }

  // The head: each warp multiplies its own 16 features by columns of weights that it copied itself.
  ptx::wait_for_copies<0>();
  __syncwarp();
  unsigned int words[4];
  load_fragments<true>(words, vectors + (DEPTH - 2) % 2 * Plan::kVector +
                                 (first + lane % 16) * kRows);
#pragma unroll
  for (int tile = 0; tile < Plan::kHeadTiles; ++tile) {
    unsigned int rows[1][4];
    load_weights<false>(rows, head + first, Plan::kPitch, 16 * tile, lane);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    ptx::multiply<T>(sum, rows[0], words[0], words[1]);
    float* const score = scores + (warp * kRows + 2 * t) * Plan::kScorePitch + 16 * tile + g;
    score[0] = sum[0];
    score[Plan::kScorePitch] = sum[1];
    score[8] = sum[2];
    score[Plan::kScorePitch + 8] = sum[3];
  }
  unsigned int head_weights[Plan::kHeadTiles][4];
  load_weights<true>(head_weights, head, Plan::kPitch, first, lane);
  __syncthreads();

  // Softmax and its gradient: one warp for each row, a lane every 32nd class.
  const auto load_way_back = [&] {
    if constexpr (kLayers > 0) {
      load_weights<true>(weights, fetcher.slot(kLayers - 1), Plan::kPitch, first, lane);
    }
  };
  if (warp >= kRows) load_way_back();
  constexpr int kLanes = Plan::kHeadRows < 32 ? Plan::kHeadRows : 32;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int row = warp + i * kTiles;
    const bool exists = begin + row < batch;
    if (row < kRows) {
      float value[kOwnClasses];
#pragma unroll
      for (int j = 0; j < kOwnClasses; ++j) {
        const int c = 32 * j + lane;
        value[j] = -infinity();
        if (c < kClasses) {
          const float* const score = scores + row * Plan::kScorePitch + c;
          float sums[2] = {head_shifts[j], 0.0f};
#pragma unroll
          for (int part = 0; part < kTiles; ++part) {
            sums[part % 2] += score[part * kRows * Plan::kScorePitch];
          }
          value[j] = sums[0] + sums[1];
        }
      }
      if (i == 0) load_way_back();  // overlaps with what follows
      float logits[kOwnClasses];
#pragma unroll
      for (int j = 0; j < kOwnClasses; ++j) logits[j] = value[j];
      const RowSoftmax found = softmax_in_turns<kLanes>(value);
      const float share = exists ? __fdividef(1.0f, static_cast<float>(batch)) : 0.0f;
#pragma unroll
      for (int j = 0; j < kOwnClasses; ++j) {
        const int c = 32 * j + lane;
        const float p = __fdividef(value[j], found.total);
        const float gradient =
            c < kClasses ? cross_entropy_slope(p, c == label[i], share) : 0.0f;
        if (c < Plan::kHeadRows) head_gradient[c * kRows + row] = from_float<T>(gradient);
        if (c < kClasses && c == label[i] && exists) {
          row_p[begin + row] = probability_or_log(p, found.largest - logits[j], found.total);
        }
      }
      if (lane == 0 && exists) {
        row_correct[begin + row] = found.first == label[i] ? 1 : 0;
        if (label[i] < 0 || label[i] >= kClasses) row_p[begin + row] = not_a_number();
      }
    }
  }
  __syncthreads();

  // Backward: the gradients of layers DEPTH - 1 to 1, from the head's.
#pragma unroll
  for (int i = DEPTH - 2; i >= 0; --i) {
    if (i == DEPTH - 2) {
#pragma unroll
      for (int j = 0; j < 4; ++j) z[j] = 0.0f;
#pragma unroll
      for (int tile = 0; tile < Plan::kHeadTiles; ++tile) {
        load_fragments<true>(words, head_gradient + (16 * tile + lane % 16) * kRows);
        ptx::multiply<T>(z, head_weights[tile], words[0], words[1]);
      }
      if (thread < Plan::kHeadRows) {  // no more than WIDTH
        *reinterpret_cast<uint4*>(gradients + ((DEPTH - 1) * WIDTH + thread) * ldgradients +
                                  begin) =
            *reinterpret_cast<const uint4*>(head_gradient + thread * kRows);
      }
    } else {
      product<kTiles>(z, weights, vectors + i % 2 * Plan::kVector, lane);
    }
    const float2 low = unpack_pair<T>(outputs[i][0]);
    const float2 high = unpack_pair<T>(outputs[i][1]);
    const unsigned int result[2] = {
        pack_pair<T>(ACTIVATION::backward(z[0], low.x), ACTIVATION::backward(z[1], low.y)),
        pack_pair<T>(ACTIVATION::backward(z[2], high.x), ACTIVATION::backward(z[3], high.y)),
    };
    if (i > 0) {
      T* const vector = vectors + (i - 1) % 2 * Plan::kVector + (first + g) * kRows + 2 * t;
      *reinterpret_cast<unsigned int*>(vector) = result[0];
      *reinterpret_cast<unsigned int*>(vector + 8 * kRows) = result[1];
    }
    T* const kept = gradients + (i * WIDTH + first + g) * ldgradients + column;
    *reinterpret_cast<unsigned int*>(kept) = result[0];
    *reinterpret_cast<unsigned int*>(kept + 8 * ldgradients) = result[1];
    if (i > 0) {
      const int next = i - 1;  // among the layers between hidden ones
      if (i < DEPTH - 2) {
        if (next < kLayers - Plan::kSlots) {  // copied again, the first time for the backward pass
          fetcher.await_layer(next, 0, way_back_turn(next, kLayers, Plan::kSlots));
          __syncthreads();
        }
        load_weights<true>(weights, fetcher.slot(next), Plan::kPitch, first, lane);
      }
      __syncthreads();
      if (next >= Plan::kSlots) {  // all warps have read its slot
        const int again = next - Plan::kSlots;
        fetcher.fetch_layer(again, true, copies[again], pitches[again], kSizes[again + 1],
                            kSizes[again], thread);
      }
    }
  }
}
