// Inline PTX as kernels see it. emulator.py makes of each asm statement a call of ptx() with a function
// that returns the text, and of each operand a reference with its constraint.
//
// Instructions of registers alone are found at compile time and called with values. All others go to
// the interpreter (ptx.cpp), which parses the text of a statement once.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace twin {

struct Operand {
  void* place;
  unsigned char bytes;
  bool writable;
};

template <char CONSTRAINT>
constexpr unsigned char kBytes = CONSTRAINT == 'h'                                              ? 2
                                 : CONSTRAINT == 'r' || CONSTRAINT == 'f' || CONSTRAINT == 'n' ? 4
                                 : CONSTRAINT == 'l' || CONSTRAINT == 'd'                      ? 8
                                                                                               : 0;

// By value where the statement only reads it, but for what it reads later (wgmma): hence a reference.
template <char CONSTRAINT, bool WRITABLE, typename T>
struct Reference {
  static constexpr unsigned char kSize = kBytes<CONSTRAINT>;
  static constexpr bool kWritable = WRITABLE;
  static_assert(kSize == sizeof(T), "an operand whose type is not of its constraint's size");
  T& value;
};
template <char CONSTRAINT, typename T>
inline Reference<CONSTRAINT, false, const T> input(const T& value) {
  return {value};
}
template <char CONSTRAINT, typename T>
inline Reference<CONSTRAINT, true, T> output(T& value) {
  return {value};
}

// Instructions that read and write registers alone: what they are called, and the bytes of what they
// write and read.
enum class Pure {
  kPackBf16, kPackF16, kPackE4m3, kPackE5m2, kWidenE4m3, kWidenE5m2, kToF16, kToBf16, kFromF16,
  kFmaF16, kFmaF16Pair, kToTf32, kSqrt, kExp2, kInverse, kQuotient, kGreaterBf16, kGreaterF16,
  kWideProduct, kNone,
};
struct PureName {
  std::string_view name;
  Pure operation;
  int inputs;
  unsigned char written, read;
};
constexpr PureName kPure[] = {
    {"cvt.rn.bf16x2.f32", Pure::kPackBf16, 2, 4, 4},
    {"cvt.rn.f16x2.f32", Pure::kPackF16, 2, 4, 4},
    {"cvt.rn.satfinite.e4m3x2.f32", Pure::kPackE4m3, 2, 2, 4},
    {"cvt.rn.satfinite.e5m2x2.f32", Pure::kPackE5m2, 2, 2, 4},
    {"cvt.rn.f16x2.e4m3x2", Pure::kWidenE4m3, 1, 4, 2},
    {"cvt.rn.f16x2.e5m2x2", Pure::kWidenE5m2, 1, 4, 2},
    {"cvt.rn.f16.f32", Pure::kToF16, 1, 2, 4},
    {"cvt.rn.bf16.f32", Pure::kToBf16, 1, 2, 4},
    {"cvt.f32.f16", Pure::kFromF16, 1, 4, 2},
    {"fma.rn.f16", Pure::kFmaF16, 3, 2, 2},
    {"fma.rn.f16x2", Pure::kFmaF16Pair, 3, 4, 4},
    {"cvt.rna.tf32.f32", Pure::kToTf32, 1, 4, 4},
    {"sqrt.approx.ftz.f32", Pure::kSqrt, 1, 4, 4},
    {"ex2.approx.ftz.f32", Pure::kExp2, 1, 4, 4},
    {"rcp.approx.ftz.f32", Pure::kInverse, 1, 4, 4},
    {"div.approx.ftz.f32", Pure::kQuotient, 2, 4, 4},
    {"set.gt.u32.bf16x2", Pure::kGreaterBf16, 2, 4, 4},
    {"set.gt.u32.f16x2", Pure::kGreaterF16, 2, 4, 4},
    {"mul.wide.u32", Pure::kWideProduct, 2, 8, 4},
};
std::uint64_t pure(Pure operation, std::uint64_t a, std::uint64_t b, std::uint64_t c);

// A statement of one such instruction that writes %0, and which operands it reads.
struct PureText {
  Pure operation = Pure::kNone;
  int inputs = 0;
  int order[3] = {};
  unsigned char written = 0, read = 0;
};
constexpr PureText pure_text(std::string_view text) {
  PureText none;
  const std::size_t space = text.find(' ');
  if (space == text.npos || text.substr(space + 1, 2) != "%0" || text.back() != ';') return none;
  for (const PureName& known : kPure) {
    if (known.name != text.substr(0, space)) continue;
    PureText found{known.operation, known.inputs, {}, known.written, known.read};
    std::string_view rest = text.substr(space + 3);
    for (int i = 0; i < known.inputs; ++i) {
      if (rest.size() < 5 || rest.substr(0, 3) != ", %" || rest[3] < '0' || rest[3] > '9') return none;
      found.order[i] = rest[3] - '0';
      rest.remove_prefix(4);
    }
    return rest == ";" ? found : none;
  }
  return none;
}

struct Site {
  const char* text;
  void* program;  // once it has been parsed
};
void interpret(Site& site, const Operand* operands, int count, const void* here);

template <typename TEXT, typename... O>
[[gnu::noinline, gnu::no_sanitize("thread", "undefined")]] void interpret(O... o) {
  static constinit Site site{TEXT{}(), nullptr};
  const Operand operands[sizeof...(O) + 1] = {
      {const_cast<void*>(static_cast<const void*>(&o.value)), O::kSize, O::kWritable}..., {}};
  interpret(site, operands, sizeof...(O), __builtin_return_address(0));
}

template <typename T>
[[gnu::always_inline]] inline std::uint64_t bits_of(const T& value) {
  std::uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}

template <PureText CODE, typename OUT, typename... IN>
[[gnu::always_inline]] inline void compute(OUT out, IN... in) {
  static_assert(OUT::kWritable && OUT::kSize == CODE.written, "an operand of another size");
  const std::uint64_t values[] = {0, bits_of(in.value)..., 0, 0, 0};
  static_assert(((IN::kSize == CODE.read) && ...), "an operand of another size");
  static_assert(CODE.order[0] <= int{sizeof...(IN)} && CODE.order[1] <= int{sizeof...(IN)} &&
                CODE.order[2] <= int{sizeof...(IN)}, "an operand that is not there");
  const std::uint64_t result = pure(CODE.operation, values[CODE.order[0]],
                                    values[CODE.order[1]], values[CODE.order[2]]);
  __builtin_memcpy(&out.value, &result, sizeof out.value);
}

template <typename TEXT, typename... O>
[[gnu::always_inline]] inline void ptx(TEXT, O... o) {
  constexpr std::string_view text = TEXT{}();
  constexpr PureText code = pure_text(text);
  if constexpr (text.empty()) {
    // Says to the compiler alone that something changes.
  } else if constexpr (code.operation != Pure::kNone) {
    compute<code>(o...);
  } else {
    interpret<TEXT>(o...);
  }
}

}  // namespace twin
