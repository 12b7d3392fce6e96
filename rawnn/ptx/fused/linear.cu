// linear_forward, linear_update: a whole step of softmax regression in two launches that read the uint8
// data set directly (without a gathered copy of the batch).
//
//   s = *cursor + offset; batch row r is example s*stride + r of images [N, features] and labels
//   [N], where ORDERED example order[s*stride + r];  x = images * scale;
//   w [CLASSES, features], bias [CLASSES];  p = softmax(x w^T + bias)
//   linear_forward: dz[batch, CLASSES] = (p - onehot)/batch, row_loss[r] = -log p[r, label],
//                   row_correct[r] = 1 where the first maximum is at the label, else 0
//   linear_update:  w -= rate * (dz^T x + decay * w),  rate = rates[s], or lr
//                   bias -= rate * (column sums of dz + decay * bias),
//                   loss[s] = mean(row_loss), correct[s] = sum(row_correct)
//
// images, labels: uint8; order: int32 [N], read only if ORDERED (a run-time test makes some compilers
// spill); rates: float [steps], or null.
//
// Used by `fuse` for a network of one linear layer. CLASSES is 1 .. 32. Sums have a fixed order, so
// results repeat bit for bit. A label outside the classes makes its row's loss NaN.
// Launch: linear_forward one block a row, min(256, ceil(features / 4) rounded up to 32) threads, a
// multiple of 32 (224 at 784 features; an incomplete last warp would idle). linear_update
// ceil(features / 8) + 1 blocks of 64 * ceil(CLASSES / 2) threads (320 for 10 classes); at least one
// warp. Fewer warps only take more passes.
// Limit: latency. Forward: *cursor, then the pixels, while all weights are in flight (each block reads
// the whole of w from the L2 cache). Update: *cursor, pixels, shared memory, reduction.
// The parameters are declared in the order of their use: each further 64 bytes of them are another
// miss in the constant cache, 0.07 us a launch.
// Programmatic launch: neither kernel triggers, so the next one begins as blocks end. After an early
// trigger its blocks would compete for issue slots, which is slower than no overlap.
#include "primitives/common.cuh"
#include "device/shared.cuh"
#include "fused/linear_pieces.cuh"
#include "losses/softmax.cuh"

// The smallest power of two that is at least `classes`.
__device__ constexpr int lanes_for(int classes) {
  int lanes = 1;
  while (lanes < classes) lanes *= 2;
  return lanes;
}

template <int CLASSES>
__device__ __forceinline__ void load_weights(float4 (&weights)[CLASSES],
                                             const float* __restrict__ w, int ldw, int quad) {
#pragma unroll
  for (int c = 0; c < CLASSES; ++c) {
    weights[c] = *reinterpret_cast<const float4*>(w + static_cast<long long>(c) * ldw + 4 * quad);
  }
}

template <int CLASSES, bool ORDERED = false>
__global__ void __launch_bounds__(256)
    linear_forward(const int* __restrict__ cursor, int offset, int stride,
                   const unsigned char* __restrict__ images, int ldimages, int features,
                   const float* __restrict__ w, int ldw, int batch, const float* __restrict__ bias,
                   const unsigned char* __restrict__ labels, const int* __restrict__ order,
                   float scale, int lddz, float* __restrict__ dz, float* __restrict__ row_loss,
                   int* __restrict__ row_correct) {
  pdl_wait();
  __shared__ float4 partial[CLASSES][3];  // 8 warps and a pad
  float* const partial_words = reinterpret_cast<float*>(partial);
  const int row = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int workers = warps * 32;

  // Independent loads are issued first: the cursor, the weights, the bias. A thread's pixels follow
  // when the cursor has arrived.
  const int step = current_step(cursor, offset);
  const bool vector = aligned(images, ldimages, 4) && aligned(w, ldw, 16);
  const int quads = vector ? features / 4 : 0;
  int quad = warp < warps ? thread : quads;
  float4 weights[CLASSES];
  if (quad < quads) load_weights(weights, w, ldw, quad);
  const float shift = warp == 0 && lane < CLASSES ? bias[lane] : 0.0f;
  const float share = __fdividef(1.0f, static_cast<float>(batch));

  const long long example = example_of<ORDERED>(order, step, stride, row);
  const unsigned char* image = images + example * ldimages;
  const int label = labels[example];
  float sums[CLASSES];
#pragma unroll
  for (int c = 0; c < CLASSES; ++c) sums[c] = 0.0f;
  while (quad < quads) {
    const uchar4 pixels = *reinterpret_cast<const uchar4*>(image + 4 * quad);
    const float x0 = pixels.x, x1 = pixels.y, x2 = pixels.z, x3 = pixels.w;
#pragma unroll
    for (int c = 0; c < CLASSES; ++c) {
      sums[c] += x0 * weights[c].x + x1 * weights[c].y + x2 * weights[c].z + x3 * weights[c].w;
    }
    quad += workers;
    if (quad < quads) load_weights(weights, w, ldw, quad);
  }
  // The rest after accesses of four: up to 3 features, or all of them if rows are not aligned.
  if (warp < warps) {
    for (int feature = 4 * quads + thread; feature < features; feature += workers) {
      const float x = image[feature];
#pragma unroll
      for (int c = 0; c < CLASSES; ++c) {
        sums[c] += x * w[static_cast<long long>(c) * ldw + feature];
      }
    }
    transpose_sum(sums, lane);
    const int c = transposed_index<CLASSES>(lane);
    if (c >= 0) partial_words[12 * c + warp] = sums[0];
    if (warp == 0 && c >= 0) {
      for (int absent = warps; absent < 8; ++absent) partial_words[12 * c + absent] = 0.0f;
    }
  }
  __syncthreads();
  if (warp != 0) return;

  // From here on, one lane for each class.
  constexpr int lanes = lanes_for(CLASSES);
  const int own = lane < CLASSES ? lane : 0;
  const float4 low = partial[own][0];
  const float4 high = partial[own][1];
  const float z = ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
  const float logit = lane < CLASSES ? z * scale + shift : -infinity();
  float row_of_z[1] = {logit};
  const RowSoftmax found = softmax_in_turns<lanes>(row_of_z);
  const float p = __fdividef(row_of_z[0], found.total);
  if (lane < CLASSES) {
    dz[static_cast<long long>(row) * lddz + lane] = cross_entropy_slope(p, lane == label, share);
  }
  if (lane == (label < CLASSES ? label : 0)) {
    row_loss[row] = label < CLASSES ? cross_entropy_of(p, found.largest - logit, found.total)
                                    : not_a_number();
    row_correct[row] = found.first == label ? 1 : 0;
  }
}

// Bounded to 48 registers for 10 classes, which makes some compilers spill one or two. 64 registers
// without a spill (a minimum of one block a multiprocessor) are slower on an H200.
template <int CLASSES, bool ORDERED = false>
__global__ void __launch_bounds__(64 * ((CLASSES + 1) / 2))
    linear_update(const int* __restrict__ cursor, int offset, int stride,
                  const unsigned char* __restrict__ images, int ldimages, int features,
                  const float* __restrict__ dz, int lddz, int batch, float* __restrict__ w,
                  int ldw, float scale, const int* __restrict__ order, float lr, float decay,
                  const float* __restrict__ rates, float* __restrict__ bias,
                  const float* __restrict__ row_loss, const int* __restrict__ row_correct,
                  float* __restrict__ loss, int* __restrict__ correct) {
  pdl_wait();
  constexpr int pairs = (CLASSES + 1) / 2;
  constexpr int threads = 64 * pairs;  // of the intended launch
  constexpr int kTileRows = 128;               // batch rows staged at a time
  constexpr int kPlane = 2 * (kTileRows + 4);  // padded: neighboring classes of a row differ in bank
  __shared__ float4 x_tile[2][kTileRows];         // [four features][row]
  __shared__ float2 dz_tile[pairs * kPlane / 2 + 1];  // [two classes][row], and an unused slot
  float* const dz_words = reinterpret_cast<float*>(dz_tile);
  ptx::nobody_reads(dz_words[pairs * kPlane]);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int step = current_step(cursor, offset);
  if (blockIdx.x == gridDim.x - 1) {
    if (warp < warps) {
      update_bias<CLASSES>(dz, lddz, row_loss, row_correct, bias, rates, loss, correct, step, batch,
                           lr, decay, lane, warp, warps);
    }
    return;
  }

  // A warp computes four features of two classes; its lanes divide the batch. After the reduction
  // lanes 4i .. 4i+3 hold output i: class i / 4 of the two, feature i % 4 of the four.
  const int feature = kTileFeatures * static_cast<int>(blockIdx.x);
  const bool vector = aligned(images, ldimages, 8) && feature + kTileFeatures <= features;
  const int threads_here = static_cast<int>(blockDim.x);
  for (int first_tile = 0; first_tile < 2 * pairs; first_tile += warps) {
    const int tile = first_tile + warp;
    const bool working = warp < warps && tile < 2 * pairs;
    const int pair = tile / 2;
    const int half = tile & 1;
    const int out_class = 2 * pair + lane / 16;
    const int out_feature = feature + 4 * half + ((lane / 4) & 3);
    const bool writes =
        working && (lane & 3) == 0 && out_class < CLASSES && out_feature < features;
    float* const weight = w + static_cast<long long>(out_class) * ldw + out_feature;
    const float before = writes ? *weight : 0.0f;  // early, to overlap with all other loads

    float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int first = 0; first < batch; first += kTileRows) {
      if (first > 0 || first_tile > 0) __syncthreads();  // the last tile has been read
      const int rows = min(kTileRows, batch - first);
      // dz does not depend on the cursor: its loads are issued before those of the pixels, and it is in
      // shared memory before they arrive. A block smaller than intended loops over both.
      constexpr int each = (kTileRows * CLASSES + threads - 1) / threads;
      unsigned int packed[2] = {0u, 0u};
      for (int base = 0; base < kTileRows * CLASSES; base += each * threads_here) {
        float values[each];
#pragma unroll
        for (int i = 0; i < each; ++i) {
          const int element = base + i * threads_here + thread;
          const int row = element / CLASSES;
          values[i] = row < rows ? dz[static_cast<long long>(first + row) * lddz +
                                      (element - row * CLASSES)]
                                 : 0.0f;
        }
        if (base == 0 && thread < rows) {
          const long long example = example_of<ORDERED>(order, step, stride, first + thread);
          load_pixels(packed, images + example * ldimages, feature, features, vector);
        }
#pragma unroll
        for (int i = 0; i < each; ++i) {
          const int element = base + i * threads_here + thread;
          const int row = element / CLASSES;
          const int c = element - row * CLASSES;
          // Elements past the tile go to the unused slot: a select is cheaper than a branch.
          dz_words[row < kTileRows ? (c / 2) * kPlane + 2 * row + (c & 1) : pairs * kPlane] =
              values[i];
        }
      }
      if (CLASSES % 2 == 1) {  // the class that pads the last pair
        for (int row = thread; row < kTileRows; row += threads_here) {
          dz_words[(CLASSES / 2) * kPlane + 2 * row + 1] = 0.0f;
        }
      }
      if (thread < kTileRows) {
        x_tile[0][thread] = unpack(packed[0]);
        x_tile[1][thread] = unpack(packed[1]);
      }
      for (int row = thread + threads_here; row < kTileRows; row += threads_here) {
        unsigned int further[2] = {0u, 0u};
        if (row < rows) {
          const long long example = example_of<ORDERED>(order, step, stride, first + row);
          load_pixels(further, images + example * ldimages, feature, features, vector);
        }
        x_tile[0][row] = unpack(further[0]);
        x_tile[1][row] = unpack(further[1]);
      }
      __syncthreads();
      if (working) {
#pragma unroll
        for (int i = 0; i < kTileRows / 32; ++i) {
          const int row = lane + 32 * i;
          const float4 x = x_tile[half][row];
          const float2 d = dz_tile[pair * (kPlane / 2) + row];
          sums[0] += d.x * x.x;
          sums[1] += d.x * x.y;
          sums[2] += d.x * x.z;
          sums[3] += d.x * x.w;
          sums[4] += d.y * x.x;
          sums[5] += d.y * x.y;
          sums[6] += d.y * x.z;
          sums[7] += d.y * x.w;
        }
      }
    }
    const float rate = rates != nullptr ? rates[step] : lr;  // arrives while the sums are reduced
    if (working) transpose_sum(sums, lane);
    if (writes) *weight = before - rate * (scale * sums[0] + decay * before);
  }
}
