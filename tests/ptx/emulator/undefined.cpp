// What -fsanitize=undefined reports, as a failure of the launch: no runtime of its own is linked.
#include "runtime.h"

namespace {

struct Place {
  const char* file;
  std::uint32_t line, column;
};

[[noreturn]] void report(const void* data, const char* what) {
  const auto& place = *static_cast<const Place*>(data);
  twin::fail("%s at %s:%u", what, place.file, place.line);
}

}  // namespace

#define EMULATOR_UNDEFINED(name, what, ...) \
  extern "C" void __ubsan_handle_##name##_abort(void* data __VA_OPT__(, ) __VA_ARGS__) {   \
    report(data, what);                                                                   \
  }

EMULATOR_UNDEFINED(type_mismatch_v1, "a misaligned access", void*)
EMULATOR_UNDEFINED(out_of_bounds, "an index outside its array", void*)
EMULATOR_UNDEFINED(shift_out_of_bounds, "a shift by too many bits", void*, void*)
EMULATOR_UNDEFINED(add_overflow, "an addition overflows", void*, void*)
EMULATOR_UNDEFINED(sub_overflow, "a subtraction overflows", void*, void*)
EMULATOR_UNDEFINED(mul_overflow, "a product overflows", void*, void*)
EMULATOR_UNDEFINED(negate_overflow, "a negation overflows", void*)
EMULATOR_UNDEFINED(divrem_overflow, "a division by zero", void*, void*)

// These two never go on, and are called so under any flags.
extern "C" void __ubsan_handle_builtin_unreachable(void* data) {
  report(data, "what cannot be reached is reached");
}
extern "C" void __ubsan_handle_missing_return(void* data) {
  report(data, "a function ends without a value");
}
