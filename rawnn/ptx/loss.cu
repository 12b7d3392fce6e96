// cross_entropy, accuracy, loss_accuracy, loss_gradient, softmax_loss_gradient: what a step reports,
// and from which the backward pass starts.
//
//   loss[s]    = mean over rows of -log(p[r, y[r]])              s = *cursor + offset
//   correct[s] = number of rows whose first maximum is at y[r]
//   dz         = (p - onehot(y)) / rows                          p: [rows, cols]; y: int32, dense
//   softmax_loss_gradient starts from z and keeps the probabilities to itself.
//
// The step that reports uses the first two; `fuse` first joins them (loss_accuracy), then takes
// loss_gradient, then softmax_loss_gradient. A probability below FLT_MIN counts as FLT_MIN. A NaN
// stays a NaN, and a label outside 0 .. cols-1 makes the loss NaN: a broken run must be seen.
// Launch: ONE block of up to 1024 threads, one dimension; a thread takes the rows thread,
// thread + block, ... and the partial sums meet in a fixed order, so results repeat bit for bit.
// Limit: latency; one multiprocessor does all the work, which suits batches of up to a few thousand.
#include "common.cuh"

// -log(p[label]) for one row, NaN for a label that is no column.
template <typename T>
__device__ __forceinline__ float row_cross_entropy(const T* row, int label, int cols) {
  if (label < 0 || label >= cols) return not_a_number();
  return negative_log(static_cast<float>(row[label]));
}

// The first maximum; the first NaN where there is one, as NumPy's argmax.
template <typename T>
__device__ __forceinline__ int first_maximum(const T* row, int cols) {
  float best = static_cast<float>(row[0]);
  int at = 0;
#pragma unroll 4
  for (int column = 1; column < cols; ++column) {
    const float value = static_cast<float>(row[column]);
    if (value > best || (value != value && best == best)) {
      best = value;
      at = column;
    }
  }
  return at;
}

__device__ __forceinline__ void store_loss(float* loss, int step, float sum, int rows) {
  const float total = block_sum(sum);
  if (threadIdx.x == 0) loss[step] = total / static_cast<float>(rows);
}

__device__ __forceinline__ void store_correct(int* correct, int step, int count) {
  const int total = block_sum(count);
  if (threadIdx.x == 0) correct[step] = total;
}

template <typename T>
__global__ void cross_entropy(const T* __restrict__ p, int ldp, const int* __restrict__ y,
                              const int* __restrict__ cursor, int offset, float* __restrict__ loss,
                              int rows, int cols) {
  const int step = current_step(cursor, offset);
  float sum = 0.0f;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    sum += row_cross_entropy(p + static_cast<long long>(row) * ldp, y[row], cols);
  }
  store_loss(loss, step, sum, rows);
}

template <typename T>
__global__ void accuracy(const T* __restrict__ p, int ldp, const int* __restrict__ y,
                         const int* __restrict__ cursor, int offset, int* __restrict__ correct,
                         int rows, int cols) {
  const int step = current_step(cursor, offset);
  int right = 0;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    right += first_maximum(p + static_cast<long long>(row) * ldp, cols) == y[row] ? 1 : 0;
  }
  store_correct(correct, step, right);
}

template <typename T>
__global__ void loss_accuracy(const T* __restrict__ p, int ldp, const int* __restrict__ y,
                              const int* __restrict__ cursor, int offset, float* __restrict__ loss,
                              int* __restrict__ correct, int rows, int cols) {
  const int step = current_step(cursor, offset);
  float sum = 0.0f;
  int right = 0;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    const T* values = p + static_cast<long long>(row) * ldp;
    const int label = y[row];
    sum += row_cross_entropy(values, label, cols);
    right += first_maximum(values, cols) == label ? 1 : 0;
  }
  store_loss(loss, step, sum, rows);
  store_correct(correct, step, right);
}

template <typename T>
__global__ void loss_gradient(const T* p, int ldp, const int* __restrict__ y,
                              const int* __restrict__ cursor, int offset, T* dz, int lddz,
                              float* __restrict__ loss, int* __restrict__ correct, int rows,
                              int cols) {
  const int step = current_step(cursor, offset);
  float sum = 0.0f;
  int right = 0;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    const T* values = p + static_cast<long long>(row) * ldp;
    T* gradient = dz + static_cast<long long>(row) * lddz;
    const int label = y[row];
    sum += row_cross_entropy(values, label, cols);
    right += first_maximum(values, cols) == label ? 1 : 0;
#pragma unroll 4
    for (int column = 0; column < cols; ++column) {
      const float target = column == label ? 1.0f : 0.0f;
      gradient[column] = static_cast<T>((static_cast<float>(values[column]) - target) /
                                        static_cast<float>(rows));
    }
  }
  store_loss(loss, step, sum, rows);
  store_correct(correct, step, right);
}

template <typename T>
__global__ void softmax_loss_gradient(const T* z, int ldz, const int* __restrict__ y,
                                      const int* __restrict__ cursor, int offset, T* dz, int lddz,
                                      float* __restrict__ loss, int* __restrict__ correct, int rows,
                                      int cols) {
  const int step = current_step(cursor, offset);
  float sum = 0.0f;
  int right = 0;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    const T* values = z + static_cast<long long>(row) * ldz;
    T* gradient = dz + static_cast<long long>(row) * lddz;
    const int label = y[row];
    float largest = -infinity();
    int predicted = 0;
#pragma unroll 4
    for (int column = 0; column < cols; ++column) {
      const float value = static_cast<float>(values[column]);
      if (value > largest) {
        largest = value;
        predicted = column;
      }
    }
    float total = 0.0f;
#pragma unroll 4
    for (int column = 0; column < cols; ++column) {
      total += expf(static_cast<float>(values[column]) - largest);
    }
    if (total != total) predicted = 0;  // all probabilities are NaN: the first maximum is at 0
    float labelled = not_a_number();
#pragma unroll 4
    for (int column = 0; column < cols; ++column) {
      const float p = expf(static_cast<float>(values[column]) - largest) / total;
      if (column == label) labelled = p;
      const float target = column == label ? 1.0f : 0.0f;
      gradient[column] = static_cast<T>((p - target) / static_cast<float>(rows));
    }
    sum += negative_log(labelled);
    right += predicted == label ? 1 : 0;
  }
  store_loss(loss, step, sum, rows);
  store_correct(correct, step, right);
}
