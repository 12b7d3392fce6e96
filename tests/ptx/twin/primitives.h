// namespace ptx on the host: what the headers of rawnn/ptx/device declare, by the same names.
#pragma once

namespace ptx {

// shared.cuh
template <typename T = unsigned char, int ALIGN = 16>
T* dynamic_shared() {
  return reinterpret_cast<T*>(twin::dynamic_shared(ALIGN));
}
unsigned int shared_address(const void* pointer);
template <int WORDS>
void load_shared(unsigned int (&words)[WORDS], unsigned int from) {
  twin::load_shared(words, WORDS, from);
}
inline unsigned int load_shared(unsigned int from) {
  unsigned int word;
  twin::load_shared(&word, 1, from);
  return word;
}
template <int WORDS>
void store_shared(unsigned int to, const unsigned int (&words)[WORDS]) {
  twin::store_shared(to, words, WORDS);
}

template <typename T>
void nobody_reads(const T& object) {
  twin::nobody_reads(&object, sizeof object);
}

// convert.cuh
using twin::Number;
inline unsigned int pack_bf16(float low, float high) {
  return twin::encode(Number::kBf16, low) | twin::encode(Number::kBf16, high) << 16;
}
inline unsigned int pack_f16(float low, float high) {
  return twin::encode(Number::kF16, low) | twin::encode(Number::kF16, high) << 16;
}
inline unsigned short pack_e4m3(float low, float high) {
  return static_cast<unsigned short>(twin::encode(Number::kE4m3, low) |
                                     twin::encode(Number::kE4m3, high) << 8);
}
inline unsigned short pack_e5m2(float low, float high) {
  return static_cast<unsigned short>(twin::encode(Number::kE5m2, low) |
                                     twin::encode(Number::kE5m2, high) << 8);
}
inline unsigned int widen(Number format, unsigned short pair) {
  return twin::encode(Number::kF16, twin::decode(format, pair & 255u)) |
         twin::encode(Number::kF16, twin::decode(format, pair >> 8)) << 16;
}
inline unsigned int widen_e4m3(unsigned short pair) { return widen(Number::kE4m3, pair); }
inline unsigned int widen_e5m2(unsigned short pair) { return widen(Number::kE5m2, pair); }
inline unsigned short to_f16(float value) {
  return static_cast<unsigned short>(twin::encode(Number::kF16, value));
}
inline unsigned short to_bf16(float value) {
  return static_cast<unsigned short>(twin::encode(Number::kBf16, value));
}
inline float from_f16(unsigned short bits) { return twin::decode(Number::kF16, bits); }
inline unsigned short fma_f16(unsigned short a, unsigned short b, unsigned short c) {
  const double exact = double{from_f16(a)} * from_f16(b) + from_f16(c);
  // To odd, so that the second rounding is the only one.
  float once = static_cast<float>(exact);
  if (std::isfinite(once) && once != exact && (__float_as_uint(once) & 1u) == 0u) {
    once = std::nextafter(once, exact > once ? INFINITY : -INFINITY);
  }
  return to_f16(once);
}
inline unsigned int fma_f16_pair(unsigned int a, unsigned int b, unsigned int c) {
  unsigned int result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    result |= unsigned{fma_f16(static_cast<unsigned short>(a >> shift),
                               static_cast<unsigned short>(b >> shift),
                               static_cast<unsigned short>(c >> shift))} << shift;
  }
  return result;
}
inline unsigned int to_tf32(float value) {
  const unsigned int bits = __float_as_uint(value);
  if (!std::isfinite(value)) return std::isnan(value) ? 0x7fffe000u : bits;
  return (bits + 0x1000u) & 0xffffe000u;
}
inline unsigned int near_tf32(float value) { return __float_as_uint(value) + 0x1000u; }
inline void split_tf32(float value, unsigned int& high, unsigned int& low) {
  high = near_tf32(value) & 0xffffe000u;
  low = __float_as_uint(value - __uint_as_float(high));
}
inline float approximate_sqrt(float value) {
  return std::fabs(value) < 1.17549435e-38f ? 0.0f * value : sqrtf(value);
}
inline float approximate_exp2(float value) {
  const float power = std::exp2(value);
  return power < 1.17549435e-38f ? 0.0f : power;  // and a NaN of a NaN
}
inline float approximate_inverse(float value) {
  const auto flushed = [](float x) { return std::fabs(x) < 1.17549435e-38f ? 0.0f * x : x; };
  return flushed(1.0f / flushed(value));
}
inline float approximate_quotient(float a, float b) {
  const auto flushed = [](float x) { return std::fabs(x) < 1.17549435e-38f ? 0.0f * x : x; };
  return std::fabs(b) > 8.50705917e37f && std::fabs(a) <= 3.40282347e38f
             ? std::copysign(0.0f, a) * std::copysign(1.0f, b)
             : flushed(flushed(a) / flushed(b));
}
inline unsigned int greater(Number format, unsigned int a, unsigned int b) {
  unsigned int result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const bool is = twin::decode(format, a >> shift & 0xffffu) >
                    twin::decode(format, b >> shift & 0xffffu);
    result |= (is ? 0xffffu : 0u) << shift;
  }
  return result;
}
inline unsigned int greater_bf16(unsigned int a, unsigned int b) {
  return greater(Number::kBf16, a, b);
}
inline unsigned int greater_f16(unsigned int a, unsigned int b) {
  return greater(Number::kF16, a, b);
}
inline unsigned long long wide_product(unsigned int a, unsigned int b) {
  return static_cast<unsigned long long>(a) * b;
}

// products.cuh
template <bool TRANSPOSED, int MANY>
void load_matrices(unsigned int (&words)[MANY], unsigned int row) {
  twin::load_matrices(words, row, TRANSPOSED, MANY);
}
inline unsigned int transpose_matrix(unsigned int word) { return twin::transpose_matrix(word); }
template <typename TA, typename TB = TA>
void multiply(float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
  twin::multiply(twin::kNumber<TA>, twin::kNumber<TB>, c, a, b0, b1);
}
template <typename T>
void multiply_half(float (&c)[4], const unsigned int (&a)[2], unsigned int b) {
  const unsigned int whole[4] = {a[0], a[1], 0, 0};
  twin::multiply(twin::kNumber<T>, twin::kNumber<T>, c, whole, b, 0);
}
inline void multiply_from_zero(float (&c)[4], const unsigned int (&a)[4], unsigned int b0,
                               unsigned int b1) {
  for (float& sum : c) sum = 0.0f;
  twin::multiply(Number::kTf32, Number::kTf32, c, a, b0, b1);
}
inline void multiply_f16(unsigned int (&c)[2], const unsigned int (&a)[4], unsigned int b0,
                         unsigned int b1) {
  twin::multiply_f16(c, a, b0, b1);
}

// copies.cuh
template <int BYTES = 16>
void copy_async(unsigned int to, const void* from) {
  twin::copy_async(to, from, BYTES, BYTES);
}
template <int BYTES = 16>
void copy_async(unsigned int to, const void* from, int exist) {
  twin::copy_async(to, from, BYTES, exist);
}
void commit_copies();
template <int PENDING>
void wait_for_copies() {
  twin::wait_for_copies(PENDING);
}
inline void wait_for_all_copies() { twin::wait_for_copies(-1); }

// some_threads.cuh
template <int NUMBER, int COUNT>
void sync_some() {
  twin::sync_some(NUMBER, COUNT);
}

// barriers.cuh
void init_barrier(unsigned int barrier, int arrivals);
void publish_barriers();
void arrive(unsigned int barrier);
void arrive_remote_having_read(unsigned int barrier);
void arrive_expecting(unsigned int barrier, int bytes);
void expect(unsigned int barrier, int bytes);
bool has_ended(unsigned int barrier, int parity);
void wait_for(unsigned int barrier, int parity);
void wait_for_remote(unsigned int barrier, int parity);

// bulk_copies.cuh
void load_bulk(unsigned int to, const void* from, int bytes, unsigned int barrier);
void load_tile(unsigned int to, const TensorMap& from, int row, int column, unsigned int barrier);
void load_tile_to_blocks(unsigned int to, const TensorMap& from, int row, int column,
                         unsigned int barrier, unsigned int blocks);
void store_tile(const TensorMap& to, int row, int column, unsigned int from);
void commit_stores();
template <int PENDING>
void wait_for_reads() {
  twin::wait_for_stores(PENDING, true);
}
template <int PENDING = 0>
void wait_for_stores() {
  twin::wait_for_stores(PENDING, false);
}

// cluster.cuh
unsigned int cluster_rank();
void arrive_at_cluster();
void arrive_at_cluster_relaxed();
void wait_for_cluster();
inline void cluster_barrier() {
  arrive_at_cluster();
  wait_for_cluster();
}
unsigned int in_block(unsigned int address, unsigned int rank);
float load_remote(unsigned int from);
void send(unsigned int to, float value, unsigned int barrier);
void send4(unsigned int to, float4 value, unsigned int barrier);

// grid.cuh
void add_release(unsigned int* counter, unsigned int value);
unsigned int load_acquire(const unsigned int* counter);
void wait_for_count(const unsigned int* counter, unsigned int target, int what = 0);
inline void grid_barrier(unsigned int* counter, unsigned int target, int what = 0) {
  twin::sync_block();
  if (threadIdx.x == 0) {
    add_release(counter, 1u);
    wait_for_count(counter, target, what);
  }
  twin::sync_block();
}

// marks.cuh
void store_marked(float4* to, float4 v, unsigned int mark);
float4 load_marked(const float4* from);
void look_for(unsigned int& lacking, const float4* from, const float4& v, unsigned int mark);
void store_marked(uint2* to, uint2 v, unsigned int mark);
uint2 load_marked(const uint2* from);
void look_for(unsigned int& lacking, const uint2* from, const uint2& v, unsigned int mark);
void look_again(int& tries, int what);

// unknown.cuh
inline unsigned int unknown_zero() { return 0; }

// clock.cuh
unsigned long long cycles();
inline unsigned long long nanoseconds() { return cycles(); }

// fences.cuh
void fence_proxy_async();
void wait_for_kernels();
void launch_dependents();

// warpgroup.cuh
template <int COUNT>
void give_registers() {}
template <int COUNT>
void take_registers() {}
void fence_products();
void commit_products();
template <int PENDING>
void wait_for_products() {
  twin::wait_for_products(PENDING);
}
inline unsigned long long descriptor(unsigned int address, int leading, int stride,
                                     bool swizzled) {
  return static_cast<unsigned long long>((address & 0x3ffffu) >> 4) |
         static_cast<unsigned long long>(leading / 16) << 16 |
         static_cast<unsigned long long>(stride / 16) << 32 |
         static_cast<unsigned long long>(swizzled ? 1 : 0) << 62;
}
template <int N, typename TA, typename TB, bool WIDE_A, bool WIDE_B>
void multiply_async(float (&d)[N / 2], unsigned long long a, unsigned long long b, int add) {
  twin::multiply_async(N, twin::kNumber<TA>, twin::kNumber<TB>, WIDE_A, WIDE_B, d, a, b, add);
}

template <int N>
void multiply_async(float (&d)[N / 2], const unsigned int (&a)[4], unsigned long long b, int add) {
  twin::multiply_async_rows(N, Number::kTf32, false, d, a, b, add);
}
template <int N, bool WIDE_B>
void multiply_async_f16(float (&d)[N / 2], const unsigned int (&a)[4], unsigned long long b,
                        int add) {
  twin::multiply_async_rows(N, Number::kF16, WIDE_B, d, a, b, add);
}
template <int COUNT>
void settle(float (&)[COUNT]) {}

}  // namespace ptx
