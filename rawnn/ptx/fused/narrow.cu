// narrow_input, narrow_update: the parts before and after narrow_inner (narrow_inner.cu) of a training
// step of a network of narrow layers, in two launches that read the uint8 data set directly.
//
//   s = *cursor + offset; batch row r is example s*stride + r of images [N, FEATURES], where
//   ORDERED example order[s*stride + r]; x = images * scale; DEPTH layers (2 .. 6), layer l with
//   SIZEl outputs, none wider than WIDTH, a multiple of 32 up to 256
//   narrow_input:  partial[i*SIZE1 + j, r] = contribution of features 256i .. 256i + 255 to x w1^T [r, j]
//   narrow_inner:  activations = a1 .., gradients = dz1 .., row_p, row_correct
//   narrow_update: w -= rate * (gradient^T input + decay * w) and c = w, rounded, for every layer,
//                  b -= rate * (row sums of the gradient + decay * b), rate = rates[s] or lr;
//                  loss[s] = mean of -log row_p, correct[s] = sum of row_correct;
//                  with STEPS = 2 then narrow_input of step s + 1, on the new weights
//
// T, float16 or bfloat16: the copies c1 .. c6, activations and gradients [DEPTH*WIDTH, batch], whose
// rows from (l - 1)*WIDTH on are layer l. Masters w1 .. w6, biases b1 .. b6 and partial are float; rates
// float [steps]. Pixels are multiplied as integers, which are exact in both types, and sums are scaled.
// Rows of images are padded to 4 bytes, all others to 16. Padding may hold anything; that of
// activations, gradients, weights and copies may be written.
// Null pointers: order unless ORDERED, rates, partial in narrow_update with STEPS = 1, biases, and
// everything of the layers behind DEPTH.
//
// Used by `fuse` with `mma` (rawnn/ptx/fused/narrow.py), which also merges a step's narrow_update with
// the next one's narrow_input. Sums have a fixed order, so results repeat bit for bit.
// Launch: blocks of 256 threads, SPLITS = ceil(FEATURES / 256) of them for each 16 outputs of the
// first layer; narrow_update one more for each 8 pieces of 16 x 32 of the other layers' weights and
// a warp for the metrics.
// Limit: latency. With programmatic edges cursor, order, pixels and first-layer masters are fetched
// while narrow_inner runs. docs/notes/fuse.md says what each measure contributes.
#include "primitives/common.cuh"
#include "losses/metrics.cuh"
#include "fused/narrow_pieces.cuh"

template <typename T, bool ORDERED, int SPLITS, int FEATURES, int SIZE1>
__global__ void __launch_bounds__(32 * kPieceWarps, 1)
    narrow_input(const int* __restrict__ cursor, int offset, int stride,
                 const int* __restrict__ order, const unsigned char* __restrict__ images,
                 int ldimages, int batch, const float* w1, int ldw1, float scale, float* partial,
                 int ldpartial) {
  __shared__ float sums[kPieceWarps * kPieceRows * kBatchRows];
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  FirstLayer<T, ORDERED, FEATURES, SIZE1, SPLITS> layer(block, thread / 32, thread & 31);
  const int step = current_step(cursor, offset);
  const BatchRows<ORDERED> rows{images, order, static_cast<long long>(step) * stride, ldimages,
                                batch};
  unsigned int inputs[4][4];
  if (kProgrammatic && layer.working) layer.load_across(inputs, rows, 0);
  pdl_wait();
  pdl_trigger();
  layer.piece.load(w1, ldw1, layer.row, layer.col, SIZE1, FEATURES);
  if (!kProgrammatic && layer.working) layer.load_across(inputs, rows, 0);
  layer.product(sums, inputs, rows, block, thread, scale, partial, ldpartial);
}

// The first blocks hold pieces of the first layer, SPLITS blocks for each 16 rows of it; then come
// blocks with pieces of the other layers. The warp behind the last piece sums up the metrics. With
// STEPS = 2 the blocks of the first layer continue with the next step's product.
template <typename T, bool ORDERED, int STEPS, int SPLITS, int DEPTH, int WIDTH, int FEATURES,
          int SIZE1, int SIZE2, int SIZE3, int SIZE4, int SIZE5, int SIZE6>
__global__ void __launch_bounds__(32 * kPieceWarps, 1)
    narrow_update(const int* __restrict__ cursor, int offset, int stride,
                  const int* __restrict__ order, const unsigned char* __restrict__ images,
                  int ldimages, int batch, float* w1, int ldw1, int ldgradients,
                  const T* gradients, const float* __restrict__ rates, float lr, float decay,
                  float scale, int ldc1, T* c1, float* b1, float* partial, int ldpartial,
                  int ldactivations, const T* activations, float* w2, T* c2, int ldw2, int ldc2,
                  float* b2, float* w3, T* c3, int ldw3, int ldc3, float* b3, float* w4, T* c4,
                  int ldw4, int ldc4, float* b4, float* w5, T* c5, int ldw5, int ldc5, float* b5,
                  float* w6, T* c6, int ldw6, int ldc6, float* b6, const float* row_p,
                  const int* row_correct, float* loss, int* correct) {
  __shared__ float shared_sums[STEPS > 1 ? kPieceWarps * kPieceRows * kBatchRows : 1];
  constexpr int kSizes[] = {SIZE1, SIZE2, SIZE3, SIZE4, SIZE5, SIZE6};
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int block = static_cast<int>(blockIdx.x);
  const int parts = (batch + kBatchRows - 1) / kBatchRows;
  const int step = current_step(cursor, offset);
  float rate = lr;
  float sums[4][4];
#pragma unroll
  for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] = 0.0f;
  float bias_sums[2] = {0.0f, 0.0f};
  Gradients<T> gradient;

  constexpr int kFirst = pieces_down(SIZE1) * SPLITS;
  if (block < kFirst) {
    FirstLayer<T, ORDERED, FEATURES, SIZE1, SPLITS> layer(block, warp, lane);
    const long long first = static_cast<long long>(step) * stride;
    const BatchRows<ORDERED> now{images, order, first, ldimages, batch};
    const BatchRows<ORDERED> next{images, order, first + stride, ldimages, batch};
    const T* const from = gradients + layer.row * ldgradients + 8 * t;
    unsigned int inputs[4][4], ahead[4][4];
    const auto load_inputs = [&] {
      if (!layer.working) return;
      layer.load_down(inputs, now, 0);
      if constexpr (STEPS > 1) layer.load_across(ahead, next, 0);
    };
    // Before the wait: narrow_inner, the kernel directly before this one, does not write these.
    layer.piece.load(w1, ldw1, layer.row, layer.col, SIZE1, FEATURES);
    const bool biased = b1 != nullptr && block % SPLITS == 0 && warp == 0;
    BiasPair bias;
    if (biased) bias.load(b1, layer.row, SIZE1);
    if constexpr (kProgrammatic) load_inputs();
    if (rates != nullptr) rate = rates[step];
    pdl_wait();
    pdl_trigger();
    gradient.load(from, ldgradients, batch - 8 * t);
    if constexpr (!kProgrammatic) load_inputs();
    if (layer.working) {
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        if (part > 0) {
          const int at = kBatchRows * part;
          gradient.load(from + at, ldgradients, batch - at - 8 * t);
          layer.load_down(inputs, now, part);
        }
        gradient.add_to(bias_sums);
#pragma unroll
        for (int i = 0; i < 4; ++i) gradient.multiply_by(sums[i], inputs[i]);
      }
      layer.piece.update(sums, scale, rate, decay);
      layer.piece.store(w1, ldw1, c1, ldc1, layer.row, layer.col, SIZE1, FEATURES);
      if (biased) bias.update(b1, bias_sums, layer.row, SIZE1, rate, decay, t);
    }
    if constexpr (STEPS > 1) {
      layer.product(shared_sums, ahead, next, block, thread, scale, partial, ldpartial);
    }
    return;
  }

  if (rates != nullptr) rate = rates[step];
  pdl_wait();
  pdl_trigger();
  float* const masters[] = {w1, w2, w3, w4, w5, w6};
  const int pitches[] = {ldw1, ldw2, ldw3, ldw4, ldw5, ldw6};
  T* const copies[] = {c1, c2, c3, c4, c5, c6};
  const int copy_pitches[] = {ldc1, ldc2, ldc3, ldc4, ldc5, ldc6};
  float* const biases[] = {b1, b2, b3, b4, b5, b6};
  int index = (block - kFirst) * kPieceWarps + warp;
  int layer = 0, rows = 0, cols = 0, across = 1, ld = 0, ldcopy = 0, mine = 0;
  float* master = nullptr;
  T* copy = nullptr;
  float* bias = nullptr;
#pragma unroll
  for (int i = 1; i < DEPTH; ++i) {
    const int pieces = pieces_down(kSizes[i]) * pieces_across(kSizes[i - 1]);
    if (index >= 0 && index < pieces) {
      layer = i;
      rows = kSizes[i];
      cols = kSizes[i - 1];
      across = pieces_across(kSizes[i - 1]);
      master = masters[i];
      ld = pitches[i];
      copy = copies[i];
      ldcopy = copy_pitches[i];
      bias = biases[i];
      mine = index;
    }
    index -= pieces;
  }
  if (layer > 0) {
    const int row = mine / across * kPieceRows + g;
    const int begin = mine % across * kPieceCols;
    const int col = begin + 4 * t;
    Piece piece;
    piece.load(master, ld, row, col, rows, cols);
    const bool biased = begin == 0 && bias != nullptr;
    BiasPair pair;
    if (biased) pair.load(bias, row, rows);
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
      const int at = kBatchRows * part + 8 * t;
      const T* const input =
          activations + ((layer - 1) * WIDTH + begin + tile_column(g)) * ldactivations + at;
      unsigned int inputs[4][4];
      gradient.load(gradients + (layer * WIDTH + row) * ldgradients + at, ldgradients,
                    batch - at);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_eight(inputs[i], input + i * ldactivations, batch - at);
      }
      gradient.add_to(bias_sums);
#pragma unroll
      for (int i = 0; i < 4; ++i) gradient.multiply_by(sums[i], inputs[i]);
    }
    piece.update(sums, 1.0f, rate, decay);
    piece.store(master, ld, copy, ldcopy, row, col, rows, cols);
    if (biased) pair.update(bias, bias_sums, row, rows, rate, decay, t);
  } else if (index == 0) {
    warp_report<1>([&](int row) { return negative_log(row_p[row]); }, row_correct, batch, step,
                   loss, correct);
  }
}
