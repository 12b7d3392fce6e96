// Numbers of few bits, by their definition: no shortcut that rawnn's own conversions take.
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

double magnitude_of(const Format& format, unsigned int bits) {
  const int bias = (1 << (format.exponent - 1)) - 1;
  const unsigned int mantissa = bits & ((1u << format.mantissa) - 1);
  const int exponent = static_cast<int>(bits >> format.mantissa);
  const double part = std::ldexp(mantissa, -format.mantissa);
  return exponent == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1.0 + part, exponent - bias);
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
  const double largest = magnitude_of(format, format.largest);
  const double beyond = magnitude_of(format, format.largest + 1);
  if (magnitude >= largest) {
    const bool over = magnitude > largest && magnitude >= (largest + beyond) / 2;
    return sign | (over && format.infinite ? format.largest + 1 : format.largest);
  }
  unsigned int low = 0, high = format.largest;  // neighbours around the value, by bisection
  while (high - low > 1) {
    const unsigned int middle = (low + high) / 2;
    (magnitude_of(format, middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - magnitude_of(format, low);
  const double above = magnitude_of(format, high) - magnitude;
  const bool up = above < below || (above == below && (high & 1u) == 0u);
  return sign | (up ? high : low);
}

float decode(Number kind, unsigned int bits) {
  if (kind == Number::kTf32) return __builtin_bit_cast(float, bits & 0xffffe000u);
  const Format format = format_of(kind);
  const unsigned int sign = bits >> (format.exponent + format.mantissa) & 1u;
  const unsigned int magnitude = bits & ((1u << (format.exponent + format.mantissa)) - 1);
  double value = magnitude_of(format, magnitude);
  if (magnitude > format.largest) {
    // E5m2 is left with infinities where it is read; what e4m3 has beyond its largest is a NaN.
    const bool infinity = kind != Number::kE4m3 && magnitude == format.largest + 1;
    value = infinity ? HUGE_VAL : NAN;
  }
  return static_cast<float>(sign != 0 ? -value : value);
}

}  // namespace twin
