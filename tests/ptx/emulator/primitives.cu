// Each primitive of rawnn/ptx/device by itself: what it makes of numbers, and where they come to lie.
// test_instructions.py says what that should be.
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "device/cluster.cuh"
#include "device/convert.cuh"
#include "device/copies.cuh"
#include "device/fences.cuh"
#include "device/grid.cuh"
#include "device/products.cuh"
#include "device/shared.cuh"
#include "device/unknown.cuh"
#include "device/warpgroup.cuh"
#include "gemm/mma_fragments.cuh"
#include "primitives/types.cuh"

__device__ unsigned int bits(float x) { return __float_as_uint(x); }

// Number by number: `a`, `b` and `c` are bits.
__global__ void numbers(int what, const unsigned int* a, const unsigned int* b, const unsigned int* c,
                        unsigned long long* out, int n) {
  for (int i = 0; i < n; ++i) {
    const float x = __uint_as_float(a[i]), y = __uint_as_float(b[i]);
    const auto h = [](unsigned int word) { return static_cast<unsigned short>(word); };
    unsigned int high = 0, low = 0;
    ptx::split_tf32(x, high, low);
    const unsigned int four[4] = {a[i], a[i], a[i], a[i]};
    Factor<float, float> factor;
    Factor<float, tf32x3> parts;
    factor.take(four);
    parts.take(four);
    switch (what) {
      case 0: out[i] = ptx::pack_bf16(x, y); break;
      case 1: out[i] = ptx::pack_f16(x, y); break;
      case 2: out[i] = ptx::pack_e4m3(x, y); break;
      case 3: out[i] = ptx::pack_e5m2(x, y); break;
      case 4: out[i] = ptx::widen_e4m3(h(a[i])); break;
      case 5: out[i] = ptx::widen_e5m2(h(a[i])); break;
      case 6: out[i] = ptx::to_f16(x); break;
      case 7: out[i] = ptx::to_bf16(x); break;
      case 8: out[i] = bits(ptx::from_f16(h(a[i]))); break;
      case 9: out[i] = ptx::fma_f16(h(a[i]), h(b[i]), h(c[i])); break;
      case 10: out[i] = ptx::fma_f16_pair(a[i], b[i], c[i]); break;
      case 11: out[i] = ptx::to_tf32(x); break;
      case 12: out[i] = ptx::near_tf32(x); break;
      case 13: out[i] = high; break;
      case 14: out[i] = low; break;
      case 15: out[i] = bits(ptx::approximate_sqrt(x)); break;
      case 16: out[i] = bits(ptx::approximate_exp2(x)); break;
      case 17: out[i] = bits(ptx::approximate_inverse(x)); break;
      case 18: out[i] = bits(ptx::approximate_quotient(x, y)); break;
      case 19: out[i] = ptx::greater_bf16(a[i], b[i]); break;
      case 20: out[i] = ptx::greater_f16(a[i], b[i]); break;
      case 21: out[i] = ptx::wide_product(a[i], b[i]); break;
      case 23: out[i] = factor.word[i % 4]; break;
      case 24: out[i] = parts.word[i % 4]; break;
      case 25: out[i] = parts.low[i % 4]; break;
      default: out[i] = ptx::unknown_zero();
    }
  }
}

// 1, 2 and 4 words a thread, to the end of dynamic shared memory: stored by address and read by
// pointer, and the other way round.
template <int ALIGN>
__global__ void words(const unsigned int* x, unsigned int* stored, unsigned int* loaded) {
  unsigned int* const memory = ptx::dynamic_shared<unsigned int, ALIGN>();
  const int i = static_cast<int>(threadIdx.x);
  const auto at = [&](int word) { return ptx::shared_address(memory + word); };
  unsigned int one[1] = {x[i]}, two[2], four[4];
  for (int j = 0; j < 2; ++j) two[j] = x[32 + 2 * i + j];
  for (int j = 0; j < 4; ++j) four[j] = x[96 + 4 * i + j];
  ptx::store_shared(at(i), one);
  ptx::store_shared(at(32 + 2 * i), two);
  ptx::store_shared(at(96 + 4 * i), four);
  __syncthreads();
  for (int j = i; j < 224; j += 32) stored[j] = memory[j];
  __syncthreads();
  for (int j = i; j < 224; j += 32) memory[j] = x[j] + 1;
  __syncthreads();
  loaded[i] = ptx::load_shared(at(i));
  ptx::load_shared(two, at(32 + 2 * i));
  ptx::load_shared(four, at(96 + 4 * i));
  for (int j = 0; j < 2; ++j) loaded[32 + 2 * i + j] = two[j];
  for (int j = 0; j < 4; ++j) loaded[96 + 4 * i + j] = four[j];
}

// Groups of copies: the first is there while the second may not be; a third is in no group. Of each the
// thread's place is of BYTES.
template <int BYTES>
__global__ void copied(const unsigned char* x, unsigned char* out, int exist) {
  unsigned char* const memory = ptx::dynamic_shared<unsigned char>();
  const int i = static_cast<int>(threadIdx.x) * BYTES;
  constexpr int kAll = 32 * BYTES;
  const auto at = [&](int part) { return ptx::shared_address(memory + part * kAll + i); };
  const auto show = [&](int part) {
    for (int j = 0; j < BYTES; ++j) out[part * kAll + i + j] = memory[part * kAll + i + j];
  };
  ptx::copy_async<BYTES>(at(0), x + i);
  ptx::commit_copies();
  ptx::copy_async<BYTES>(at(1), x + kAll + i, exist);
  ptx::commit_copies();
  ptx::wait_for_copies<1>();
  show(0);
  ptx::wait_for_copies<0>();
  show(1);
  ptx::copy_async<BYTES>(at(2), x + 2 * kAll + i, exist / 2);
  ptx::wait_for_all_copies();
  show(2);
}

// A warp hands numbers to another, and waits for the place to be free.
__global__ void handed(const float* x, float* out, int rounds) {
  __shared__ float slot[32];
  __shared__ unsigned long long places[2];
  const unsigned int full = ptx::shared_address(&places[0]), empty = ptx::shared_address(&places[1]);
  if (threadIdx.x == 0) {
    ptx::init_barrier(full, 32);
    ptx::init_barrier(empty, 32);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x < 32) {
      if (round > 0) ptx::wait_for(empty, (round - 1) % 2);
      slot[lane] = x[round * 32 + lane];
      ptx::arrive(full);
    } else {
      ptx::wait_for(full, round % 2);
      out[round * 32 + lane] = slot[31 - lane];
      ptx::arrive(empty);
    }
  }
}

// Blocks of a cluster send to the next one, and read from the one behind that.
__global__ void around(float* out, unsigned int* ranks) {
  float* const box = ptx::dynamic_shared<float>();  // 32 of `send`, 128 of `send4`, 32 to be read
  __shared__ unsigned long long place;
  const unsigned int barrier = ptx::shared_address(&place);
  const unsigned int rank = ptx::cluster_rank();
  const int lane = static_cast<int>(threadIdx.x);
  if (lane == 0) {
    ptx::init_barrier(barrier, 1);
    ptx::publish_barriers();
    ptx::expect(barrier, 32 * 20);
    ptx::arrive(barrier);
    ranks[blockIdx.x] = rank;
  }
  const float first = 1000.0f * static_cast<float>(rank) + static_cast<float>(lane);
  box[160 + lane] = -first;
  ptx::cluster_barrier();
  const unsigned int next = (rank + 1) % 4;
  ptx::send(ptx::in_block(ptx::shared_address(box + lane), next), first, ptx::in_block(barrier, next));
  ptx::send4(ptx::in_block(ptx::shared_address(box + 32 + 4 * lane), next),
             make_float4(first + 0.25f, first + 0.5f, first + 0.75f, first + 0.875f),
             ptx::in_block(barrier, next));
  const float far = ptx::load_remote(
      ptx::in_block(ptx::shared_address(box + 160 + lane), (rank + 2) % 4));
  ptx::wait_for_remote(barrier, 0);
  for (int i = 0; i < 5; ++i) out[blockIdx.x * 192 + i * 32 + lane] = box[i * 32 + lane];
  out[blockIdx.x * 192 + 160 + lane] = far;
  ptx::cluster_barrier();
}

// A row, a tile, and a tile for both blocks of a cluster, which the first of them asks for; tiles of 8 x 32
// are stored elsewhere, and their place is written again.
__global__ void engine(const float* x, float* y, float* out, const __grid_constant__ TensorMap x_map,
                       const __grid_constant__ TensorMap y_map) {
  unsigned char* const aligned = ptx::dynamic_shared<unsigned char, 1024>();
  float* const row = reinterpret_cast<float*>(aligned);
  float* const tile = row + 32;
  float* const shared_tile = tile + 256;
  __shared__ unsigned long long place;
  const unsigned int barrier = ptx::shared_address(&place);
  const int rank = static_cast<int>(ptx::cluster_rank()), lane = static_cast<int>(threadIdx.x);
  if (lane == 0) {
    ptx::init_barrier(barrier, 1);
    ptx::publish_barriers();
    ptx::arrive_expecting(barrier, 128 + 1024 + 1024);
  }
  __syncwarp();
  ptx::arrive_at_cluster_relaxed();
  ptx::wait_for_cluster();
  if (lane == 0) {
    ptx::load_bulk(ptx::shared_address(row), x + 40 * rank, 128, barrier);
    ptx::load_tile(ptx::shared_address(tile), x_map, 3 + rank, 8, barrier);
    if (rank == 0) {
      ptx::load_tile_to_blocks(ptx::shared_address(shared_tile), x_map, 12, 4, barrier, 3u);
    }
  }
  ptx::wait_for(barrier, 0);
  for (int i = lane; i < 32 + 512; i += 32) out[rank * 544 + i] = row[i];
  ptx::fence_proxy_async();
  __syncwarp();
  if (lane == 0) {
    ptx::store_tile(y_map, 10 * rank + 1, 4, ptx::shared_address(tile));
    ptx::commit_stores();
    ptx::store_tile(y_map, 10 * rank + 2, 36, ptx::shared_address(shared_tile));
    ptx::commit_stores();
    ptx::wait_for_reads<1>();
    tile[0] = 0.0f;
    ptx::wait_for_reads<0>();
    shared_tile[0] = 0.0f;
    ptx::wait_for_stores<0>();
    y[(10 * rank + 1) * 68 + 4] += 1.0f;
  }
  ptx::cluster_barrier();
}

// Barriers of the grid with a counter that wraps around.
__global__ void wrapped(float* x, unsigned int* counter, unsigned int first) {
  const unsigned int place = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned int count = gridDim.x * blockDim.x;
  for (unsigned int round = 0; round < 3; ++round) {
    x[round * count + place] = 1.0f + (round == 0 ? 0.0f : x[(round - 1) * count + (place + blockDim.x) % count]);
    ptx::grid_barrier(counter, first + (round + 1) * gridDim.x, 1);
  }
}

// A kernel that is launched ahead of the end of the one before it.
__global__ void dependent(const float* x, float* y) {
  ptx::wait_for_kernels();
  y[threadIdx.x] = x[threadIdx.x];
  ptx::launch_dependents();
}

// Fragments of a lane, 4 words of A, 2 of B and 4 sums.
template <typename TA, typename TB>
__global__ void product(const unsigned int* a, const unsigned int* b, float* c) {
  const int i = static_cast<int>(threadIdx.x);
  unsigned int left[4];
  float sums[4];
  for (int j = 0; j < 4; ++j) left[j] = a[4 * i + j], sums[j] = c[4 * i + j];
  ptx::multiply<TA, TB>(sums, left, b[2 * i], b[2 * i + 1]);
  for (int j = 0; j < 4; ++j) c[4 * i + j] = sums[j];
}

template <typename T>
__global__ void half_product(const unsigned int* a, const unsigned int* b, float* c) {
  const int i = static_cast<int>(threadIdx.x);
  const unsigned int left[2] = {a[4 * i], a[4 * i + 1]};
  float sums[4];
  for (int j = 0; j < 4; ++j) sums[j] = c[4 * i + j];
  ptx::multiply_half<T>(sums, left, b[2 * i]);
  for (int j = 0; j < 4; ++j) c[4 * i + j] = sums[j];
}

__global__ void product_from_zero(const unsigned int* a, const unsigned int* b, float* c) {
  const int i = static_cast<int>(threadIdx.x);
  unsigned int left[4];
  float sums[4] = {7.0f, 7.0f, 7.0f, 7.0f};
  for (int j = 0; j < 4; ++j) left[j] = a[4 * i + j];
  ptx::multiply_from_zero(sums, left, b[2 * i], b[2 * i + 1]);
  for (int j = 0; j < 4; ++j) c[4 * i + j] = sums[j];
}

__global__ void product_f16(const unsigned int* a, const unsigned int* b, unsigned int* c) {
  const int i = static_cast<int>(threadIdx.x);
  unsigned int left[4], sums[2] = {c[2 * i], c[2 * i + 1]};
  for (int j = 0; j < 4; ++j) left[j] = a[4 * i + j];
  ptx::multiply_f16(sums, left, b[2 * i], b[2 * i + 1]);
  c[2 * i] = sums[0];
  c[2 * i + 1] = sums[1];
}

// MANY matrices of 8 rows of 16 bytes.
template <int MANY, bool TRANSPOSED>
__global__ void matrices(const unsigned int* rows, unsigned int* out) {
  unsigned int* const memory = ptx::dynamic_shared<unsigned int>();
  const int i = static_cast<int>(threadIdx.x);
  for (int j = i; j < MANY * 32; j += 32) memory[j] = rows[j];
  __syncwarp();
  unsigned int found[MANY];
  ptx::load_matrices<TRANSPOSED>(found, ptx::shared_address(memory + i % (8 * MANY) * 4));
  for (int j = 0; j < MANY; ++j) out[j * 32 + i] = found[j];
}

__global__ void transposed(const unsigned int* x, unsigned int* out) {
  out[threadIdx.x] = ptx::transpose_matrix(x[threadIdx.x]);
}

// Two steps of 32 bytes of a product of 64 rows by N columns, by a warpgroup, of what lies in shared memory
// as `a` and `b` have it. STEP_A and STEP_B are bytes from the first step to the second, LEADING bytes
// between panels or 16 bytes. The sums of the first step are waited for behind the second.
template <int N, typename TA, typename TB, bool WIDE_A, bool WIDE_B, bool SWIZZLED>
__global__ void warpgroup_product(const unsigned int* a, const unsigned int* b, float* out, int words_a,
                                  int words_b, int step_a, int step_b, int leading, int stride) {
  unsigned int* const left = ptx::dynamic_shared<unsigned int, 1024>();
  unsigned int* const right = left + words_a;
  const int i = static_cast<int>(threadIdx.x);
  for (int j = i; j < words_a; j += 128) left[j] = a[j];
  for (int j = i; j < words_b; j += 128) right[j] = b[j];
  ptx::fence_proxy_async();
  __syncthreads();
  const auto described = [&](unsigned int* at, int step) {
    return ptx::descriptor(ptx::shared_address(at) + static_cast<unsigned int>(step), leading, stride, SWIZZLED);
  };
  float first[N / 2], sums[N / 2];
  ptx::fence_products();
  ptx::multiply_async<N, TA, TB, WIDE_A, WIDE_B>(first, described(left, 0), described(right, 0), 0);
  ptx::commit_products();
  ptx::fence_products();
  ptx::multiply_async<N, TA, TB, WIDE_A, WIDE_B>(sums, described(left, 0), described(right, 0), 0);
  ptx::multiply_async<N, TA, TB, WIDE_A, WIDE_B>(sums, described(left, step_a), described(right, step_b), 1);
  ptx::commit_products();
  ptx::wait_for_products<1>();
  ptx::settle(first);
  for (int j = 0; j < N / 2; ++j) out[i * N + j] = first[j];
  ptx::wait_for_products<0>();
  ptx::settle(sums);
  for (int j = 0; j < N / 2; ++j) out[i * N + N / 2 + j] = sums[j];
}

// The same of one step with A in registers.
template <int N, typename T, bool WIDE_B>
__global__ void warpgroup_rows(const unsigned int* a, const unsigned int* b, float* out, int words_b,
                               int leading, int stride) {
  unsigned int* const right = ptx::dynamic_shared<unsigned int, 1024>();
  const int i = static_cast<int>(threadIdx.x);
  for (int j = i; j < words_b; j += 128) right[j] = b[j];
  ptx::fence_proxy_async();
  __syncthreads();
  unsigned int left[4];
  for (int j = 0; j < 4; ++j) left[j] = a[4 * i + j];
  float sums[N / 2];
  const unsigned long long described = ptx::descriptor(ptx::shared_address(right), leading, stride, true);
  ptx::fence_products();
  if constexpr (sizeof(T) == 4) {
    ptx::multiply_async<N>(sums, left, described, 0);
  } else {
    ptx::multiply_async_f16<N, WIDE_B>(sums, left, described, 0);
  }
  ptx::commit_products();
  ptx::wait_for_products<0>();
  ptx::settle(sums);
  for (int j = 0; j < N / 2; ++j) out[i * (N / 2) + j] = sums[j];
}
