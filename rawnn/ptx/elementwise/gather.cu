// gather: one mini-batch from the data set on the device, in the epoch's order, converted, scaled
// and normalized.
//
//   batch row r is example e = order[s*stride + r] (s*stride + r without an order);
//   s = *cursor + offset
//   x[r, features] = (images[e, features] * scale - mean) * inverse_std
//   y[r] = labels[e];  t[r, outputs] = targets[e, outputs]
//
// images: TI = unsigned char, float16 or float, row-major, pitch ldimages; x: TX = float, float16,
// bfloat16 or an 8-bit float, pitch ldx; labels: TL = unsigned char or int; y: dense int32;
// targets, t: float, pitches ldtargets, ldt; order: int32; mean, inverse_std: float [features].
// Null pointers: order, labels with y, targets with t, mean, inverse_std; images with x, if features is 0.
//
// Used by `preload`, where the data set resides on the GPU.
// Launch: one dimension, any size (grid-stride); 256 threads a block. A piece is 16 bytes of x or of t
// (4 floats, 8 16-bit or 16 8-bit numbers), or a label. The pieces of x come first, row by row, then
// those of t and y. One thread for each piece covers all. In a smaller grid a thread processes several,
// and looks up the next one in the order while it waits for the current one.
// Limit: device-memory traffic, sizeof(TI) read and sizeof(TX) written an element. Below about 1 MB of
// output it is the latency of *cursor, followed by that of the order and of the pixels. So all loads of
// a piece are issued at once, and a row's last piece is read whole if its padding allows it. A thread
// has one store, whatever the type, and a warp's stores are contiguous.
// The parameters are declared in the order of their use: each further 64 bytes of them are another
// miss in the constant cache, 0.07 us a launch.
#include "primitives/common.cuh"
#include "primitives/pdl.cuh"
#include "primitives/types.cuh"

// The first `count` elements from `from` on, packed into words. If the row allows wide accesses, each
// access is whole and may include the padding behind the row.
template <int WORDS, typename T>
__device__ __forceinline__ void fetch(unsigned int (&words)[WORDS], const T* from, bool wide,
                                      int count) {
  constexpr int size = static_cast<int>(sizeof(T));
  constexpr int taken = WORDS < 4 ? WORDS : 4;  // words of an access
  if (wide) {
#pragma unroll
    for (int first = 0; first < WORDS; first += taken) {
      if (first == 0 || first * 4 / size < count) {
        unsigned int some[taken];
        load_words(some, from + first * 4 / size);
#pragma unroll
        for (int i = 0; i < taken; ++i) words[first + i] = some[i];
      }
    }
    return;
  }
  constexpr int elements = WORDS * 4 / size;
  unsigned int raw[elements];
#pragma unroll
  for (int i = 0; i < elements; ++i) {  // all loads are issued before one is waited for
    raw[i] = 0u;
    if (i >= count) continue;
    if constexpr (size == 4) {
      raw[i] = reinterpret_cast<const unsigned int*>(from)[i];
    } else if constexpr (size == 2) {
      raw[i] = reinterpret_cast<const unsigned short*>(from)[i];
    } else {
      raw[i] = reinterpret_cast<const unsigned char*>(from)[i];
    }
  }
#pragma unroll
  for (int i = 0; i < elements; ++i) words[i * size / 4] |= raw[i] << (8 * (i * size % 4));
}

// The elements in words as floats.
template <typename T, int WORDS, int N>
__device__ __forceinline__ void widen(float (&values)[N], const unsigned int (&words)[WORDS]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 4) {
      values[i] = __uint_as_float(words[i]);
    } else if constexpr (sizeof(T) == 2) {
      const float2 pair = unpack_pair<T>(words[i / 2]);
      values[i] = i % 2 == 0 ? pair.x : pair.y;
    } else {
      values[i] = static_cast<float>((words[i / 4] >> (8 * (i % 4))) & 255u);
    }
  }
}

// The row and the place of a piece.
struct Piece {
  bool input;
  int row;
  int place;  // among those of its row
};

// Each row of x has `parts` pieces, `inputs` in all; each row of t and y then has `answers`.
__device__ __forceinline__ Piece piece_at(int index, int inputs, int parts, int answers) {
  const bool input = index < inputs;
  const unsigned int nth = static_cast<unsigned int>(input ? index : index - inputs);
  const unsigned int each = static_cast<unsigned int>(input ? parts : answers);
  const unsigned int row = nth / each;
  return {input, static_cast<int>(row), static_cast<int>(nth - row * each)};
}

template <typename TI, typename TX, typename TL>
__global__ void gather(const int* __restrict__ cursor, int offset, int stride,
                       const TI* __restrict__ images, int ldimages, int features,
                       TX* __restrict__ x, int ldx, int batch, const int* __restrict__ order,
                       const TL* __restrict__ labels, const float* __restrict__ mean,
                       const float* __restrict__ inverse_std, float scale, int outputs,
                       int* __restrict__ y, const float* __restrict__ targets,
                       float* __restrict__ t, int ldtargets, int ldt) {
  pdl_wait();
  pdl_trigger();
  const int step = current_step(cursor, offset);
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  constexpr int each = 16 / static_cast<int>(sizeof(TX));
  constexpr int bytes = each * static_cast<int>(sizeof(TI));
  const bool wide = aligned(images, ldimages, bytes < 16 ? bytes : 16);
  const bool wide_x = aligned(x, ldx, 16) && aligned(mean, 0, 16) && aligned(inverse_std, 0, 16);
  const int parts = (features + each - 1) / each;
  const int inputs = batch * parts;
  const int answers =
      (targets != nullptr ? (outputs + 3) / 4 : 0) + (labels != nullptr ? 1 : 0);
  const int total = inputs + batch * answers;
  // Before the step is first used: the division overlaps with the load.
  Piece next = piece_at(index < total ? index : 0, inputs, parts, answers);
  const long long first = static_cast<long long>(step) * stride;
  int found = 0;
  if (order != nullptr && index < total) found = order[first + next.row];
#pragma unroll 1
  while (index < total) {
    const Piece piece = next;
    const long long example = order != nullptr ? found : first + piece.row;
    const int column = piece.place * (piece.input ? each : 4);
    const int count = (piece.input ? features : outputs) - column;
    const bool label = labels != nullptr && piece.place == answers - 1;  // unless it is one of x
    unsigned int words[bytes / 4] = {};
    unsigned int answer[4] = {};
    if (piece.input) {
      fetch(words, images + example * ldimages + column, wide, count);
    } else if (label) {
      answer[0] = static_cast<unsigned int>(labels[example]);
    } else {
      fetch(answer, targets + example * ldtargets + column, aligned(targets, ldtargets, 16), count);
    }
    index += threads;
    next = piece_at(index < total ? index : 0, inputs, parts, answers);
    if (order != nullptr && index < total) found = order[first + next.row];
    if (piece.input) {
      const bool whole = wide_x && count >= each;
      float values[each];
      widen<TI>(values, words);
#pragma unroll
      for (int i = 0; i < each; ++i) values[i] *= scale;
      if (mean != nullptr) {
        float shifts[each];
        load_part(shifts, mean + column, whole, count);
#pragma unroll
        for (int i = 0; i < each; ++i) values[i] -= shifts[i];
      }
      if (inverse_std != nullptr) {
        float factors[each];
        load_part(factors, inverse_std + column, whole, count);
#pragma unroll
        for (int i = 0; i < each; ++i) values[i] *= factors[i];
      }
      store_part(at(x, ldx, piece.row, column), values, whole, count);
    } else if (label) {
      y[piece.row] = static_cast<int>(answer[0]);
    } else if (count >= 4 && aligned(t, ldt, 16)) {
      store_words(at(t, ldt, piece.row, column), answer);
    } else {
      float* const out = at(t, ldt, piece.row, column);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) out[i] = __uint_as_float(answer[i]);
      }
    }
  }
}
