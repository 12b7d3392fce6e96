// narrow_input, narrow_inner, narrow_update: a training step of a network of narrow layers in two
// dependent launches, straight from the uint8 data set.
//
//   s = *cursor + offset; batch row r is example s*stride + r of images [N, FEATURES], where
//   ORDERED example order[s*stride + r]; x = images * scale; DEPTH layers (2 .. 6), layer l with
//   SIZEl outputs, none wider than WIDTH, a multiple of 32 up to 256
//   narrow_input:  partial[i*SIZE1 + j, r] = what features 256i .. 256i + 255 add to x w1^T [r, j]
//   narrow_inner:  a1 = ACTIVATION(sum of partial over the SPLITS shares + b1), al likewise from
//                  a(l-1) and cl; p = softmax of the last layer; activations = a1 .., gradients =
//                  dz1 .. for the mean cross-entropy with labels; row_p[r] = p[r, label], NaN where
//                  that is no class; row_correct[r] = 1 where the first maximum is at it, else 0
//   narrow_update: w -= rate * (gradient^T input + decay * w) and c = w, rounded, for every layer,
//                  b -= rate * (row sums of the gradient + decay * b), rate = rates[s] or lr;
//                  loss[s] = mean of -log row_p, correct[s] = sum of row_correct;
//                  with STEPS = 2 then narrow_input of step s + 1, on the new weights
//
// T, float16 or bfloat16: the copies c1 .. c6, activations and gradients [DEPTH*WIDTH, batch], rows
// (l - 1)*WIDTH on being layer l. Masters w1 .. w6, biases b1 .. b6 and partial are float; labels
// uint8 or int32; rates float [steps]. Pixels enter products as the integers they are, exact in
// both types, and sums are scaled. Rows of images are padded to 4 bytes, all others to 16; what
// padding holds does not matter, and that of activations, gradients, weights and copies may be
// written.
// Null pointers: order unless ORDERED, rates, c1 in narrow_update, partial there with STEPS = 1,
// biases, and all of the layers behind DEPTH. ACTIVATION's slope must follow from its output.
//
// Used by `fuse` with `mma` (rawnn/ptx/narrow.py), which also joins a step's narrow_update with
// the next one's narrow_input. Sums meet in a fixed order: results repeat bit for bit.
// Launch: narrow_inner ceil(batch / 8) blocks of 2 * WIDTH threads with Inner::kBytes of dynamic
// shared memory (shared_bytes of rawnn.ptx.narrow), for SLOTS layers' weights at a time; the
// others blocks of 256 threads, SPLITS = ceil(FEATURES / 256) of them for each 16 outputs of the
// first layer; narrow_update one more for each 8 pieces of 16 x 32 of the other layers' weights and
// a warp for the metrics.
// Limit: latency. A step of 784-128-128-128-10 at batch 32 in bfloat16 takes 8.4 us on an H200 (4.7
// in narrow_inner and 3.7 in narrow_update, each with its launch), 6.1 us with programmatic edges:
// cursor, order, pixels and first-layer masters are then fetched while narrow_inner runs. Batch 64
// takes 10.8 and 8.4 us. Beyond the launches (0.65 us each) narrow_inner needs 3.4 us: 1.7 until
// the weights and the first layer's sums are there, 0.25 for each layer forward, 0.5 for the
// softmax, 0.2 for each layer backward; narrow_update 1.35 us: 0.35 until the gradients are there,
// 0.3 for stores, 0.45 for the product and the sum over 8 warps.
// What it was worth: several blocks for 16 outputs of the first layer 6.7 us; sizes as template
// arguments, addresses without branches and biases loaded ahead 1.2 us; stores in whole sectors,
// sums ahead of weights in the queue to memory, bulk copies (0.25 alone) and -log p left to
// narrow_update 1.6 us together.
#include "activations.cuh"
#include "common.cuh"
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "device/copies.cuh"
#include "device/products.cuh"
#include "device/shared.cuh"
#include "narrow_pieces.cuh"

constexpr int kRows = 8;  // of the batch, in a block of narrow_inner

#if defined(RAWNN_PDL) && RAWNN_ARCH >= 900
constexpr bool kProgrammatic = true;  // the time ahead of pdl_wait() costs nothing
#else
constexpr bool kProgrammatic = false;
#endif

// Where things lie in the shared memory of narrow_inner.
template <int DEPTH, int WIDTH, int SLOTS, int CLASSES>
struct Inner {
  static constexpr int kWarps = WIDTH / 16;  // one for each 16 features of a hidden layer
  static constexpr int kPitch = WIDTH + 8;   // of weights: rows 16 bytes apart modulo 128
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

// The copy engine takes whole rows, which costs no issue slots of the warps: from sm_90 on.
constexpr bool kHasBulk = RAWNN_ARCH >= 900;

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
template <bool TRANSPOSED, typename T>
__device__ __forceinline__ void load_fragments(unsigned int (&words)[4], const T* row) {
  ptx::load_matrices<TRANSPOSED>(words, ptx::shared_address(row));
}

// Waits until at most `pending` groups of this thread's copies are under way; `pending` must be
// known when the code around it is unrolled.
__device__ __forceinline__ void await_copies(int pending) {
  switch (pending) {
    case 0: ptx::wait_for_copies<0>(); break;
    case 1: ptx::wait_for_copies<1>(); break;
    case 2: ptx::wait_for_copies<2>(); break;
    case 3: ptx::wait_for_copies<3>(); break;
    default: ptx::wait_for_copies<4>(); break;
  }
}

// Rows `first` to first + 15 of weights in shared memory as left operands or, TRANSPOSED, these
// columns as the transpose's rows.
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

// [16, 16 * TILES] times [16 * TILES, 8], the latter in shared memory as rows of 8 elements.
template <int TILES, typename T>
__device__ __forceinline__ void product(float (&sum)[4], const unsigned int (&weights)[TILES][4],
                                        const T* vectors, int lane) {
  constexpr int kPairs = TILES / 2;
  constexpr int kAtOnce = kPairs < 4 ? kPairs : 4;  // loads ahead of their products
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

// A warp's 16 rows of one layer's weights on their way to shared memory, with zeros around what
// there is. A copy of the warp takes 64 bytes of each of 8 rows.
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

// How often the slot of layer i was filled before it is filled for the way back: with each of the
// layers i, i + slots, ... on the way there, and with those of them above i but the last on the way
// back.
__device__ constexpr int way_back_turn(int layer, int layers, int slots) {
  const int sharing = (layers - 1 - layer) / slots;  // layers above this one in its slot
  return (layer / slots + 1 + sharing) + sharing - 1;
}

// The weights between hidden layers on their way to shared memory, layer i in slot i % SLOTS: warp
// by warp, 16 rows each, in the order in which the layers are needed; each may take a slot over.
template <typename T, typename PLAN, int WIDTH, bool WHOLE>
struct Fetcher {
  static constexpr bool kBulk = kHasBulk && WHOLE;  // every layer is WIDTH x WIDTH
  static constexpr int kBytes = WIDTH * WIDTH * static_cast<int>(sizeof(T));
  T* slots;
  unsigned long long* barriers;  // one a slot
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
      __syncwarp();  // racecheck takes the initialisation for that of all lanes
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

  // `pending`: groups of copies behind this layer's; `turn`: how often the slot was filled before.
  __device__ __forceinline__ void await_layer(int layer, int pending, int turn) const {
    if constexpr (kBulk) {
      ptx::wait_for(ptx::shared_address(barriers + layer % PLAN::kSlots), turn % 2);
    } else {
      await_copies(pending);
    }
    __syncwarp();
  }
};

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
  const int first = 16 * warp;  // of this warp's features
  const int thread = static_cast<int>(threadIdx.x);
  const int begin = kRows * static_cast<int>(blockIdx.x);
  const int column = begin + 2 * t;  // of the batch rows whose results this lane has
  constexpr int kOwnRows = (kRows + kTiles - 1) / kTiles;  // of the softmax

  __shared__ unsigned long long barriers[Plan::kSlots];
  constexpr bool kWhole = SIZE1 == WIDTH && (DEPTH < 3 || SIZE2 == WIDTH) &&
                          (DEPTH < 4 || SIZE3 == WIDTH) && (DEPTH < 5 || SIZE4 == WIDTH) &&
                          (DEPTH < 6 || SIZE5 == WIDTH);
  const Fetcher<T, Plan, WIDTH, kWhole> fetcher{elements, barriers, first, lane};
  fetcher.begin(thread);

  // A label takes three loads, one after another, of what no kernel before this one writes. Each is
  // issued where the one that it needs has come by then.
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

  // The first layer: what narrow_input or narrow_update left, a part for each share of the
  // features.
  float2 parts[SPLITS][2];
#pragma unroll
  for (int i = 0; i < 2 * SPLITS; ++i) {
    const int feature = first + g + i % 2 * 8;
    float2 pair = make_float2(0.0f, 0.0f);
    if (feature < SIZE1 && column < ldpartial) {
      pair = *reinterpret_cast<const float2*>(partial + (i / 2 * SIZE1 + feature) * ldpartial +
                                              column);
    }
    parts[i / 2][i % 2] = pair;
  }
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
  __syncwarp();  // keeps these loads ahead of the weights' in the queue to memory
#pragma unroll
  for (int i = 0; i < Plan::kResident; ++i) {
    fetcher.fetch_layer(i, false, copies[i], pitches[i], kSizes[i + 1], kSizes[i], thread);
  }
#pragma unroll
  for (int tile = 0; tile < Plan::kHeadTiles; ++tile) {  // of the head, the columns this warp reads
    const int row = 16 * tile + lane / 2;
    const int col = first + lane % 2 * 8;
    const int left = row < kClasses ? min(max(kSizes[DEPTH - 2] - col, 0), 8) : 0;
    const T* const from = copies[DEPTH - 2] + (left > 0 ? row * pitches[DEPTH - 2] + col : 0);
    ptx::copy_async(ptx::shared_address(head + row * Plan::kPitch + col), from, 2 * left);
  }
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

  // Forward. What a warp gave out of each layer stays with it, for the slopes.
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
      // Groups of copies: one for each slot, the head's, one for each layer that took over a slot.
      const int reused = min(i, kLayers - Plan::kResident);
      const int group = i < Plan::kResident ? i : i + 1;
      fetcher.await_layer(i, Plan::kResident + reused - group, i / Plan::kSlots);
      load_weights<false>(weights, fetcher.slot(i), Plan::kPitch, first, lane);
      if (i + Plan::kSlots < kLayers) {  // nobody else reads these rows until the way back
        __syncwarp();
        const int next = i + Plan::kSlots;
        fetcher.fetch_layer(next, true, copies[next], pitches[next], kSizes[next + 1],
                            kSizes[next], thread);
      }
      __syncthreads();
    }
  }

  // The head: each warp multiplies its own 16 features, by columns of weights that it fetched.
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

  // Softmax and its gradient: a warp a row, a lane every 32nd class.
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
      float value[kOwnClasses], e[kOwnClasses];
      float largest = -infinity();
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
        largest = fmaxf(largest, value[j]);
      }
      if (i == 0) load_way_back();  // beside what follows
      largest = warp_max<kLanes>(largest);
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < kOwnClasses; ++j) {
        e[j] = 32 * j + lane < kClasses ? expf(value[j] - largest) : 0.0f;
        total += e[j];
      }
      total = warp_sum<kLanes>(total);
      const float share = exists ? __fdividef(1.0f, static_cast<float>(batch)) : 0.0f;
      int predicted = kClasses;
#pragma unroll
      for (int j = kOwnClasses - 1; j >= 0; --j) {
        const int c = 32 * j + lane;
        const float p = __fdividef(e[j], total);
        const float gradient = c < kClasses ? (p - (c == label[i] ? 1.0f : 0.0f)) * share : 0.0f;
        if (c < Plan::kHeadRows) head_gradient[c * kRows + row] = from_float<T>(gradient);
        const unsigned int at_maximum =
            __ballot_sync(kFullWarp, c < kClasses && value[j] == largest);
        if (at_maximum != 0u) predicted = 32 * j + __ffs(static_cast<int>(at_maximum)) - 1;
        if (c < kClasses && c == label[i] && exists) row_p[begin + row] = p;
      }
      if (lane == 0 && exists) {
        // All probabilities are NaN where one score was: the first maximum is then at 0.
        row_correct[begin + row] = (total == total ? predicted : 0) == label[i] ? 1 : 0;
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
      const int next = i - 1;  // of the layers between hidden ones
      if (i < DEPTH - 2) {
        if (next < kLayers - Plan::kSlots) {  // fetched again, on the way back for the first time
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

// The blocks of a launch hold pieces of the first layer, 16 rows of it SPLITS blocks, then pieces
// of the other layers; the warp behind the last piece sums up the metrics. With STEPS = 2 the
// blocks of the first layer go on to the next step's product.
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
    // Ahead of the wait: what narrow_inner, the kernel directly before this one, does not write.
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
    float sum = 0.0f;
    int right = 0;
#pragma unroll 1
    for (int row = lane; row < batch; row += 32) {
      sum += negative_log(row_p[row]);
      right += row_correct[row];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int half = 16; half > 0; half /= 2) right += __shfl_xor_sync(kFullWarp, right, half);
    if (lane == 0) {
      loss[step] = sum / static_cast<float>(batch);
      correct[step] = right;
    }
  }
}
