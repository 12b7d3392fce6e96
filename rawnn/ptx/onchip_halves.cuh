// Operands of products on tensor cores in 16 bits, and a task of a product of which at least one lies so in
// shared memory: as bfloat16 or float16, whatever SHAPE::kNumbers says, of which a warp loads four 8 x 8
// matrices with one instruction (ldmatrix). The other may lie as float32, which is rounded behind the load.
//
// A step is 16 along k: the elements 2t and 2t + 1 of its first eight and of its second, for both operands.
// An operand is `deep` where neighbours along k lie side by side, else wide. Rows are LD elements apart, of
// 16 bits an odd number of eights, so that those of a matrix are in all banks.
#pragma once
#include "onchip_device.cuh"

// The bits of a bfloat16 or float16.
using Half = unsigned short;

template <typename SHAPE>
__device__ __forceinline__ constexpr bool in_halves() {
  return SHAPE::kNumbers == kBfloat16 || SHAPE::kNumbers == kFloat16;
}

template <typename SHAPE>
__device__ __forceinline__ unsigned int pack_halves(float low, float high) {
  if constexpr (SHAPE::kNumbers == kFloat16) return ptx::pack_f16(low, high);
  return ptx::pack_bf16(low, high);
}

// Two or four neighbours, as they lie.
template <typename SHAPE>
__device__ __forceinline__ void store_two(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = make_float2(first, second);
}

template <typename SHAPE>
__device__ __forceinline__ void store_two(Half* to, float first, float second) {
  *reinterpret_cast<unsigned int*>(to) = pack_halves<SHAPE>(first, second);
}

template <typename SHAPE>
__device__ __forceinline__ void store_four(float* to, const float4& v) {
  *reinterpret_cast<float4*>(to) = v;
}

template <typename SHAPE>
__device__ __forceinline__ void store_four(Half* to, const float4& v) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(pack_halves<SHAPE>(v.x, v.y), pack_halves<SHAPE>(v.z, v.w));
}

template <typename SHAPE>
__device__ __forceinline__ float2 load_two(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}

template <typename SHAPE>
__device__ __forceinline__ float2 load_two(const Half* from) {
  const unsigned int both = *reinterpret_cast<const unsigned int*>(from);
  if constexpr (SHAPE::kNumbers == kFloat16) {
    return make_float2(ptx::from_f16(static_cast<Half>(both)),
                       ptx::from_f16(static_cast<Half>(both >> 16)));
  }
  return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}

// The rows of TILES tiles of 16 of the left operand, from `eight` on in steps: EIGHTS of them, of an odd
// number the last with anything but infinities in its second half.
template <typename SHAPE, typename T, bool DEEP, int TILES, int LD>
struct Left {
  const float* from[TILES];

  __device__ __forceinline__ void aim(int i, const float* left, int tile) {
    const int g = lane_index() / 4;
    const int t = lane_index() % 4;
    from[i] = left + (DEEP ? (tile * 16 + g) * LD + 2 * t : 2 * t * LD + tile * 16 + g);
  }
  __device__ __forceinline__ void load_eight(const float* p, unsigned int& upper,
                                             unsigned int& lower) const {
    if constexpr (DEEP) {
      const float2 first = *reinterpret_cast<const float2*>(p);
      const float2 second = *reinterpret_cast<const float2*>(p + 8 * LD);
      upper = pack_halves<SHAPE>(first.x, first.y), lower = pack_halves<SHAPE>(second.x, second.y);
    } else {
      upper = pack_halves<SHAPE>(p[0], p[LD]), lower = pack_halves<SHAPE>(p[8], p[LD + 8]);
    }
  }
  template <int EIGHTS>
  __device__ __forceinline__ void load(unsigned int (&words)[(EIGHTS + 1) / 2][TILES][4],
                                       int eight) const {
    constexpr int ahead = DEEP ? 8 : 8 * LD;
#pragma unroll
    for (int s = 0; s < (EIGHTS + 1) / 2; ++s) {
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        const float* const p = from[i] + (eight + 2 * s) * ahead;
        unsigned int(&to)[4] = words[s][i];
        load_eight(p, to[0], to[1]);
        to[2] = to[3] = 0u;
        if (2 * s + 1 < EIGHTS) load_eight(p + ahead, to[2], to[3]);
      }
    }
  }
};

template <typename SHAPE, bool DEEP, int TILES, int LD>
struct Left<SHAPE, Half, DEEP, TILES, LD> {
  unsigned int from[TILES];

  __device__ __forceinline__ void aim(int i, const Half* left, int tile) {
    const int row = lane_index() % 8;
    const int lower = lane_index() / 8 % 2;
    const int second = lane_index() / 16;
    from[i] = ptx::shared_address(
        left + (DEEP ? (tile * 16 + lower * 8 + row) * LD + second * 8
                     : (second * 8 + row) * LD + tile * 16 + lower * 8));
  }
  template <int EIGHTS>
  __device__ __forceinline__ void load(unsigned int (&words)[(EIGHTS + 1) / 2][TILES][4],
                                       int eight) const {
    constexpr int ahead = DEEP ? 16 : 16 * LD;  // bytes
#pragma unroll
    for (int s = 0; s < (EIGHTS + 1) / 2; ++s) {
      const int back = 2 * s + 1 < EIGHTS ? 0 : lane_index() / 16 * ahead;  // the first half again
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        ptx::load_matrices<!DEEP>(words[s][i], from[i] + (eight + 2 * s) * ahead - back);
      }
    }
  }
};

// The columns of TILES tiles of 8 of the right operand; the second half of a last step that is not there is 0.
template <typename SHAPE, typename T, bool DEEP, int TILES, int LD>
struct Right {
  const float* from[TILES];

  // `tile(j)` is the j-th tile's number.
  template <typename F>
  __device__ __forceinline__ void aim(const float* right, F tile) {
    const int g = lane_index() / 4;
    const int t = lane_index() % 4;
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      from[j] = right + (DEEP ? (tile(j) * 8 + g) * LD + 2 * t : 2 * t * LD + tile(j) * 8 + g);
    }
  }
  __device__ __forceinline__ unsigned int load_eight(const float* p) const {
    if constexpr (DEEP) {
      const float2 both = *reinterpret_cast<const float2*>(p);
      return pack_halves<SHAPE>(both.x, both.y);
    } else {
      return pack_halves<SHAPE>(p[0], p[LD]);
    }
  }
  template <int EIGHTS>
  __device__ __forceinline__ void load(unsigned int (&words)[(EIGHTS + 1) / 2][TILES][2],
                                       int eight) const {
    constexpr int ahead = DEEP ? 8 : 8 * LD;
#pragma unroll
    for (int s = 0; s < (EIGHTS + 1) / 2; ++s) {
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
        const float* const p = from[j] + (eight + 2 * s) * ahead;
        words[s][j][0] = load_eight(p);
        words[s][j][1] = 2 * s + 1 < EIGHTS ? load_eight(p + ahead) : 0u;
      }
    }
  }
};

// Four matrices are two steps of one tile, or a step of two.
template <typename SHAPE, bool DEEP, int TILES, int LD>
struct Right<SHAPE, Half, DEEP, TILES, LD> {
  static_assert(TILES == 1 || TILES % 2 == 0, "pairs");
  static constexpr int kOnce = TILES == 1 ? 4 : 2;  // eights
  static constexpr int kPairs = (TILES + 1) / 2;
  static constexpr int kAhead = DEEP ? 16 : 16 * LD;
  unsigned int from[kPairs];

  template <typename F>
  __device__ __forceinline__ void aim(const Half* right, F tile) {
    const int row = lane_index() % 8;
    const int eight = lane_index() / 8 % kOnce;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int nt = TILES == 1 || lane_index() < 16 ? tile(2 * j) : tile(2 * j + 1);
      from[j] = ptx::shared_address(right + (DEEP ? (nt * 8 + row) * LD + eight * 8
                                                  : (eight * 8 + row) * LD + nt * 8));
    }
  }
  template <int EIGHTS>
  __device__ __forceinline__ void load(unsigned int (&words)[(EIGHTS + 1) / 2][TILES][2],
                                       int eight) const {
#pragma unroll
    for (int first = 0; first < EIGHTS; first += kOnce) {
      const int mine = lane_index() / 8 % kOnce;
      const int back = first + kOnce <= EIGHTS || first + mine < EIGHTS ? 0 : mine * kAhead;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        unsigned int four[4];
        ptx::load_matrices<!DEEP>(four, from[j] + (eight + first) * kAhead - back);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int of_step = TILES == 1 ? first + q : first + q % 2;
          if (of_step / 2 < (EIGHTS + 1) / 2) {
            words[of_step / 2][TILES == 1 ? 0 : 2 * j + q / 2][q % 2] =
                of_step < EIGHTS ? four[q] : 0u;
          }
        }
      }
    }
  }
};

// A task as in onchip_fragments.cuh. Its sums are one chain: the same products in the same order as of
// operands in float32.
template <typename SHAPE, typename TA, typename TB, bool DEEP_A, bool DEEP_B, int K8, int MT, int NT,
          int LDA, int LDB>
struct HalfFragments {
  static_assert(in_halves<SHAPE>(), "16 bits");
  static constexpr int kChains = 1;
  static constexpr int kOnce = MT * NT == 1 ? 8 : 4;  // eights whose loads are under way at once
  static constexpr int kStraight = 2;                 // such pieces that are no loop

  Left<SHAPE, TA, DEEP_A, MT, LDA> a;
  Right<SHAPE, TB, DEEP_B, NT, LDB> b;
  float sum[1][MT][NT][4];

  template <typename F, typename G>
  __device__ __forceinline__ void aim(const TA* left, const TB* right, F down, G across) {
#pragma unroll
    for (int i = 0; i < MT; ++i) a.aim(i, left, down(i));
    b.aim(right, across);
  }

  static __device__ __forceinline__ void mma(float (&to)[4], const unsigned int (&x)[4],
                                             const unsigned int (&y)[2]) {
    if constexpr (SHAPE::kNumbers == kBfloat16) {
      ptx::multiply<bfloat16>(to, x, y[0], y[1]);
    } else {
      ptx::multiply<float16>(to, x, y[0], y[1]);
    }
  }

  static __device__ __forceinline__ void clear(float (&values)[4]) {
#pragma unroll
    for (int q = 0; q < 4; ++q) values[q] = 0.0f;
  }

  template <int EIGHTS>
  __device__ __forceinline__ void add(int eight) {
    if constexpr (EIGHTS > 0) {
      constexpr int steps = (EIGHTS + 1) / 2;
      unsigned int left[steps][MT][4], right[steps][NT][2];
      a.template load<EIGHTS>(left, eight);
      b.template load<EIGHTS>(right, eight);
#pragma unroll
      for (int s = 0; s < steps; ++s) {
#pragma unroll
        for (int i = 0; i < MT; ++i) {
#pragma unroll
          for (int j = 0; j < NT; ++j) mma(sum[0][i][j], left[s][i], right[s][j]);
        }
      }
    }
  }

  // EIGHTS from `eight` on.
  template <int EIGHTS>
  __device__ __forceinline__ void add_many(int eight) {
    constexpr int pieces = EIGHTS / kOnce;
    if constexpr (pieces <= kStraight) {
#pragma unroll
      for (int i = 0; i < pieces; ++i) add<kOnce>(eight + i * kOnce);
    } else {
#pragma unroll 1
      for (int i = 0; i < pieces; ++i) add<kOnce>(eight + i * kOnce);
    }
    add<EIGHTS % kOnce>(eight + pieces * kOnce);
  }

  // Those from `eight` to `end`.
  __device__ __forceinline__ void add_steps(int eight, int end) {
#pragma unroll 1
    for (; eight + kOnce <= end; eight += kOnce) add<kOnce>(eight);
    if (kOnce == 8 && eight + 4 <= end) add<4>(eight), eight += 4;
    if (eight + 2 <= end) add<2>(eight), eight += 2;
    if (eight < end) add<1>(eight);
  }

  template <int STEPS, bool WHOLE>
  __device__ __forceinline__ void add_part(int part) {
    if constexpr (WHOLE) {
      add_many<STEPS>(part * STEPS);
    } else {
      add_steps(part * STEPS, min(part * STEPS + STEPS, K8));
    }
  }
};
