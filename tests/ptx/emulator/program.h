// Inline PTX as a program: what a statement's text is parsed to, once.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime.h"

namespace twin {

struct Wide {  // a register of up to 128 bits
  std::uint64_t low = 0, high = 0;
};

// One execution of a statement: its operands, and the registers that it declares.
struct Frame {
  const Operand* operands;
  Wide* registers;
};

struct Argument {
  enum What { kOperand, kRegister, kNumber, kSpecial, kSink, kVector, kAddress };
  What what = kSink;
  int index = 0;                // of an operand or register
  std::uint64_t number = 0;     // or the offset of an address
  unsigned int bytes = 0;       // of an operand or register; 0 is a predicate
  std::vector<Argument> parts;  // of a vector; of an address its base, and coordinates if any
};

using Action = std::function<void(Frame&)>;

struct Instruction {
  int predicate = -1;  // the register
  bool negated = false;
  Action run;
};

struct Program {
  std::vector<Instruction> instructions;
  std::size_t registers = 0;
};

// The dotted parts of an instruction's name, taken from the front.
class Words {
 public:
  explicit Words(std::string_view name) {
    for (;;) {
      const std::size_t dot = name.find('.');
      parts_.push_back(name.substr(0, dot));
      if (dot == name.npos) return;
      name.remove_prefix(dot + 1);
    }
  }
  // All of `expected`, which has dots between them, or nothing.
  bool take(std::string_view expected) {
    const Words other(expected);
    if (next_ + other.parts_.size() > parts_.size()) return false;
    for (std::size_t i = 0; i < other.parts_.size(); ++i) {
      if (other.parts_[i] != parts_[next_ + i]) return false;
    }
    next_ += other.parts_.size();
    return true;
  }
  std::string_view take() { return next_ < parts_.size() ? parts_[next_++] : std::string_view{}; }
  bool end() const { return next_ == parts_.size(); }

 private:
  std::vector<std::string_view> parts_;
  std::size_t next_ = 0;
};

std::uint64_t value_of(const Frame& frame, const Argument& argument);
void assign(Frame& frame, const Argument& argument, std::uint64_t value);
// What an instruction does; nothing for one that is not known, or whose operands it does not take.
Action action_of(std::string_view name, const std::vector<Argument>& arguments);

}  // namespace twin
