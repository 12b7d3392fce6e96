// Numbers of few bits, by their definition: no shortcut that rawnn's own conversions take. And what
// instructions of registers alone make of numbers.
#include "runtime.h"

namespace twin {

namespace {

struct Format {
  int exponent, mantissa;
  bool infinite;         // has infinities; else it saturates
  unsigned int largest;  // the bits of its largest finite number
  unsigned int nan;
};

Format format_of(Number kind) {
  switch (kind) {
    case Number::kBf16: return {8, 7, true, 0x7f7f, 0x7fff};
    case Number::kF16: return {5, 10, true, 0x7bff, 0x7fff};
    case Number::kE4m3: return {4, 3, false, 0x7e, 0x7f};
    case Number::kE5m2: return {5, 2, false, 0x7b, 0x7f};
    default: std::abort();
  }
}

double magnitude(const Format& format, unsigned int bits) {
  const int bias = (1 << (format.exponent - 1)) - 1;
  const unsigned int mantissa = bits & ((1u << format.mantissa) - 1);
  const int exponent = static_cast<int>(bits >> format.mantissa);
  const double part = std::ldexp(mantissa, -format.mantissa);
  return exponent == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1.0 + part, exponent - bias);
}

// Of all numbers of a format without a sign, and one more, by their bits.
const double* magnitudes(Number kind) {
  static std::vector<double> known[static_cast<int>(Number::kE5m2) + 1];
  std::vector<double>& found = known[static_cast<int>(kind)];
  if (found.empty()) {
    const Format format = format_of(kind);
    for (unsigned int i = 0; i <= 1u << (format.exponent + format.mantissa); ++i) {
      found.push_back(magnitude(format, i));
    }
  }
  return found.data();
}

}  // namespace

// As a GPU stores a float: all its NaNs have the same bits.
float stored(double value) {
  return std::isnan(value) ? __builtin_bit_cast(float, 0x7fffffffu) : static_cast<float>(value);
}

unsigned int encode(Number kind, float value) {
  const Format format = format_of(kind);
  if (std::isnan(value)) return format.nan;
  const unsigned int sign = std::signbit(value) ? 1u << (format.exponent + format.mantissa) : 0u;
  const double magnitude = std::fabs(static_cast<double>(value));
  const double* const of = magnitudes(kind);
  const double largest = of[format.largest], beyond = of[format.largest + 1];
  if (magnitude >= largest) {
    const bool over = magnitude > largest && magnitude >= (largest + beyond) / 2;
    return sign | (over && format.infinite ? format.largest + 1 : format.largest);
  }
  unsigned int low = 0, high = format.largest;  // neighbours around the value, by bisection
  while (high - low > 1) {
    const unsigned int middle = (low + high) / 2;
    (of[middle] <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - of[low];
  const double above = of[high] - magnitude;
  const bool up = above < below || (above == below && (high & 1u) == 0u);
  return sign | (up ? high : low);
}

float decode(Number kind, unsigned int bits) {
  if (kind == Number::kTf32) return __builtin_bit_cast(float, bits & 0xffffe000u);
  const Format format = format_of(kind);
  const unsigned int sign = bits >> (format.exponent + format.mantissa) & 1u;
  const unsigned int magnitude = bits & ((1u << (format.exponent + format.mantissa)) - 1);
  double value = magnitudes(kind)[magnitude];
  if (magnitude > format.largest) {
    // E5m2 is left with infinities where it is read; what e4m3 has beyond its largest is a NaN.
    const bool infinity = kind != Number::kE4m3 && magnitude == format.largest + 1;
    value = infinity ? HUGE_VAL : NAN;
  }
  return static_cast<float>(sign != 0 ? -value : value);
}

namespace {

float flushed(float x) { return std::fabs(x) < 1.17549435e-38f ? 0.0f * x : x; }
float float_of(std::uint64_t bits) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits)); }
std::uint64_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }

unsigned int fma_f16(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  const auto number = [](std::uint64_t bits) { return decode(Number::kF16, bits & 0xffffu); };
  const double exact = double{number(a)} * number(b) + number(c);
  // To odd, so that the second rounding is the only one.
  float once = static_cast<float>(exact);
  if (std::isfinite(once) && once != exact && (bits_of(once) & 1u) == 0u) {
    once = std::nextafter(once, exact > once ? INFINITY : -INFINITY);
  }
  return encode(Number::kF16, once);
}

unsigned int greater(Number format, std::uint64_t a, std::uint64_t b) {
  unsigned int result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const bool is = decode(format, a >> shift & 0xffffu) > decode(format, b >> shift & 0xffffu);
    result |= (is ? 0xffffu : 0u) << shift;
  }
  return result;
}

// The first operand of a pair is its upper half.
unsigned int packed(Number format, int bits, std::uint64_t high, std::uint64_t low) {
  return encode(format, float_of(low)) | encode(format, float_of(high)) << bits;
}
unsigned int widened(Number format, std::uint64_t pair) {
  return encode(Number::kF16, decode(format, pair & 255u)) |
         encode(Number::kF16, decode(format, pair >> 8 & 255u)) << 16;
}

}  // namespace

std::uint64_t pure(Pure operation, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  const float x = float_of(a);
  switch (operation) {
    case Pure::kPackBf16: return packed(Number::kBf16, 16, a, b);
    case Pure::kPackF16: return packed(Number::kF16, 16, a, b);
    case Pure::kPackE4m3: return packed(Number::kE4m3, 8, a, b);
    case Pure::kPackE5m2: return packed(Number::kE5m2, 8, a, b);
    case Pure::kWidenE4m3: return widened(Number::kE4m3, a);
    case Pure::kWidenE5m2: return widened(Number::kE5m2, a);
    case Pure::kToF16: return encode(Number::kF16, x);
    case Pure::kToBf16: return encode(Number::kBf16, x);
    case Pure::kFromF16: return bits_of(decode(Number::kF16, static_cast<unsigned int>(a)));
    case Pure::kFmaF16: return fma_f16(a, b, c);
    case Pure::kFmaF16Pair: return fma_f16(a, b, c) | fma_f16(a >> 16, b >> 16, c >> 16) << 16;
    case Pure::kToTf32:
      if (!std::isfinite(x)) return std::isnan(x) ? 0x7fffe000u : a;
      return (a + 0x1000u) & 0xffffe000u;
    case Pure::kSqrt: return bits_of(flushed(x) == 0.0f ? 0.0f * x : sqrtf(x));
    case Pure::kExp2: {
      const float power = std::exp2(x);
      return bits_of(power < 1.17549435e-38f ? 0.0f : power);  // and a NaN of a NaN
    }
    case Pure::kInverse: return bits_of(flushed(1.0f / flushed(x)));
    case Pure::kQuotient: {
      const float y = float_of(b);
      return bits_of(std::fabs(y) > 8.50705917e37f && std::fabs(x) <= 3.40282347e38f
                         ? std::copysign(0.0f, x) * std::copysign(1.0f, y)
                         : flushed(flushed(x) / flushed(y)));
    }
    case Pure::kGreaterBf16: return greater(Number::kBf16, a, b);
    case Pure::kGreaterF16: return greater(Number::kF16, a, b);
    case Pure::kWideProduct: return (a & 0xffffffffu) * (b & 0xffffffffu);
    case Pure::kNone: break;
  }
  std::abort();
}

}  // namespace twin
