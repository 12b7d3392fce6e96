// What the instructions of inline PTX have in common: their operands and qualifiers.
#pragma once

#include "program.h"

namespace twin {

using Arguments = std::vector<Argument>;
using enum Argument::What;

// -- operands --------------------------------------------------------------------------------------

inline bool is_value(const Argument& a, unsigned int bytes) {
  return a.what == kNumber || ((a.what == kOperand || a.what == kRegister) && a.bytes == bytes);
}
inline bool is_place(const Argument& a, unsigned int bytes) {
  return (a.what == kOperand || a.what == kRegister) && a.bytes == bytes;
}
// An address of shared memory has 4 bytes, one of global memory 8; coordinates if asked for.
inline bool is_address(const Argument& a, unsigned int bytes, std::size_t coordinates = 0) {
  if (a.what != kAddress || !is_place(a.parts[0], bytes)) return false;
  if (coordinates == 0) return a.parts.size() == 1;
  return a.parts.size() == 2 && a.parts[1].what == kVector &&
         a.parts[1].parts.size() == coordinates;
}
// One register, or a vector of `count` of them.
inline bool are(const Argument& a, std::size_t count, unsigned int bytes) {
  if (a.what != kVector) return count == 1 && is_value(a, bytes);
  return a.parts.size() == count &&
         std::all_of(a.parts.begin(), a.parts.end(), [&](const Argument& part) { return is_value(part, bytes); });
}
inline const Argument& part(const Argument& a, std::size_t i) { return a.what == kVector ? a.parts[i] : a; }

inline unsigned int word_of(const Frame& frame, const Argument& a) {
  return static_cast<unsigned int>(value_of(frame, a));
}
inline int int_of(const Frame& frame, const Argument& a) { return static_cast<int>(word_of(frame, a)); }
inline void* pointer_of(const Frame& frame, const Argument& a) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(value_of(frame, a)));
}
// Of shared::cta: an address of the block's own.
inline unsigned int own_address(const Frame& frame, const Argument& a) {
  const unsigned int address = word_of(frame, a);
  if (address >> 24 != 0) fail("an address of another block as one of its own, at %p", self->here);
  return address;
}
inline void* place_of(const Frame& frame, const Argument& a) { return frame.operands[a.index].place; }

// -- qualifiers ------------------------------------------------------------------------------------

inline std::optional<Order> take_order(Words& words) {
  if (words.take("relaxed")) return Order::kRelaxed;
  if (words.take("acquire")) return Order::kAcquire;
  if (words.take("release")) return Order::kRelease;
  return {};
}
inline std::optional<Scope> take_scope(Words& words) {
  if (words.take("cta")) return Scope::kBlock;
  if (words.take("cluster")) return Scope::kCluster;
  if (words.take("gpu") || words.take("sys")) return Scope::kGrid;
  return {};
}
inline std::size_t take_count(Words& words) { return words.take("v4") ? 4 : words.take("v2") ? 2 : 1; }
inline unsigned int take_size(Words& words) {
  const std::string_view type = words.take();
  if (type == "b32" || type == "u32" || type == "s32" || type == "f32") return 4;
  if (type == "b64" || type == "u64" || type == "s64" || type == "f64") return 8;
  return type == "b128" ? 16 : 0;
}
inline std::optional<Number> take_number(Words& words) {
  if (words.take("tf32")) return Number::kTf32;
  if (words.take("bf16")) return Number::kBf16;
  if (words.take("f16")) return Number::kF16;
  if (words.take("e4m3")) return Number::kE4m3;
  if (words.take("e5m2")) return Number::kE5m2;
  return {};
}
inline int size_of(Number kind) {
  return kind == Number::kTf32 ? 4 : kind == Number::kBf16 || kind == Number::kF16 ? 2 : 1;
}
inline std::string depth_of(Number kind) { return "k" + std::to_string(32 / size_of(kind)); }

// A wait for all but the last so many groups.
template <typename Wait>
Action wait_action(Words& words, const Arguments& a, Wait wait) {
  if (!words.end() || a.size() != 1 || !is_value(a[0], 4)) return {};
  return [a, wait](Frame& frame) { wait(int_of(frame, a[0])); };
}
template <typename Run>
Action without_operands(Words& words, const Arguments& a, Run run) {
  if (!words.end() || !a.empty()) return {};
  return [run](Frame&) { run(); };
}

// Products of fragments and of warpgroups (tensor_cores.cpp).
Action matrices(Words& words, const Arguments& a);
Action transpose(Words& words, const Arguments& a);
Action product(Words& words, const Arguments& a);
Action warpgroup(Words& words, const Arguments& a);
Action registers(Words& words, const Arguments& a);

}  // namespace twin
