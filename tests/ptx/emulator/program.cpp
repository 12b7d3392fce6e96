// Parses the text of inline PTX and runs it.
#include "program.h"

#include <cctype>

namespace twin {

namespace {

constexpr std::string_view kSpecial[] = {"%cluster_ctarank", "%clock64", "%globaltimer"};

class Parser {
 public:
  Parser(std::string_view text, const Operand* operands, int count)
      : whole_(text), operands_(operands), count_(count) {
    // The compiler takes %% for one %, of a special register.
    for (std::size_t i = 0; i < text.size(); ++i) {
      text_ += text[i];
      if (text.substr(i, 2) == "%%") text_[text_.size() - 1] = '$', ++i;
    }
  }

  Program program() {
    while (skip(), at_ < text_.size()) {
      if (eat('{') || eat('}')) continue;
      statement();
    }
    program_.registers = sizes_.size();
    return std::move(program_);
  }

 private:
  [[noreturn]] void refuse(const char* why) {
    fail("PTX that the emulator does not know (%s): %s, at %p", why,
         std::string(whole_.substr(0, 400)).c_str(), self->here);
  }

  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool eat(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!eat(c)) refuse("another character is expected");
  }
  std::string_view word() {
    skip();
    const std::size_t begin = at_;
    const auto belongs = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == ':' || c == '$' ||
             c == '%';
    };
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    if (begin == at_) refuse("a word is expected");
    return std::string_view(text_).substr(begin, at_ - begin);
  }

  void statement() {
    Instruction made;
    if (eat('@')) {
      made.negated = eat('!');
      const Argument predicate = plain(word());
      if (predicate.what != Argument::kRegister || predicate.bytes != 0) refuse("no predicate");
      made.predicate = predicate.index;
    }
    const std::string_view name = word();
    if (name == ".reg") {
      declare();
      return;
    }
    std::vector<Argument> arguments;
    if (!eat(';')) {
      do {
        arguments.push_back(argument());
      } while (eat(','));
      expect(';');
    }
    made.run = action_of(name, arguments);
    if (!made.run) refuse(std::string(name).c_str());
    program_.instructions.push_back(std::move(made));
  }

  void declare() {
    const std::string_view type = word();
    const unsigned int bytes = type == ".pred" ? 0u : type == ".b16" ? 2u : type == ".b32" ? 4u
                               : type == ".b64" ? 8u : type == ".b128" ? 16u : ~0u;
    if (bytes == ~0u) refuse("a type of registers");
    do {
      names_.emplace_back(word());
      sizes_.push_back(bytes);
    } while (eat(','));
    expect(';');
  }

  Argument argument() {
    if (eat('{')) {
      Argument vector;
      vector.what = Argument::kVector;
      do {
        vector.parts.push_back(plain(word()));
      } while (eat(','));
      expect('}');
      return vector;
    }
    if (eat('[')) {
      Argument address;
      address.what = Argument::kAddress;
      address.parts.push_back(plain(word()));
      if (eat('+')) address.number = number(word());
      if (eat(',')) address.parts.push_back(argument());
      expect(']');
      return address;
    }
    return plain(word());
  }

  Argument plain(std::string_view name) {
    Argument found;
    if (name == "_") return found;
    if (name[0] == '%') {
      const std::uint64_t index = number(name.substr(1));
      if (index >= static_cast<std::uint64_t>(count_)) refuse("an operand that is not there");
      found.what = Argument::kOperand;
      found.index = static_cast<int>(index);
      found.bytes = operands_[index].bytes;
      return found;
    }
    if (name[0] == '$') {
      for (std::size_t i = 0; i < std::size(kSpecial); ++i) {
        if (kSpecial[i].substr(1) != name.substr(1)) continue;
        found.what = Argument::kSpecial;
        found.index = static_cast<int>(i);
        found.bytes = i == 0 ? 4 : 8;
        return found;
      }
      refuse("a special register");
    }
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] != name) continue;
      found.what = Argument::kRegister;
      found.index = static_cast<int>(i);
      found.bytes = sizes_[i];
      return found;
    }
    found.what = Argument::kNumber;
    found.number = number(name);
    return found;
  }

  std::uint64_t number(std::string_view text) {
    char* end = nullptr;
    const std::string digits(text);
    const std::uint64_t found = std::strtoull(digits.c_str(), &end, 0);
    if (digits.empty() || *end != 0 || !std::isdigit(static_cast<unsigned char>(digits[0]))) {
      refuse(digits.c_str());
    }
    return found;
  }

  std::string_view whole_;
  std::string text_;
  std::size_t at_ = 0;
  const Operand* operands_;
  int count_;
  std::vector<std::string> names_;
  std::vector<unsigned int> sizes_;
  Program program_;
};

}  // namespace

std::uint64_t value_of(const Frame& frame, const Argument& argument) {
  std::uint64_t value = argument.number;
  if (argument.what == Argument::kOperand) {
    value = 0;
    std::memcpy(&value, frame.operands[argument.index].place, argument.bytes);
  } else if (argument.what == Argument::kRegister) {
    value = frame.registers[argument.index].low;
  } else if (argument.what == Argument::kSpecial) {
    value = argument.index == 0 ? self->block->rank : next_reading();
  } else if (argument.what == Argument::kAddress) {
    value += value_of(frame, argument.parts[0]);
  }
  return value;
}

void assign(Frame& frame, const Argument& argument, std::uint64_t value) {
  if (argument.what == Argument::kRegister) {
    frame.registers[argument.index] = {value, 0};
    return;
  }
  const Operand& operand = frame.operands[argument.index];
  if (argument.what != Argument::kOperand || !operand.writable) {
    fail("PTX writes an operand that is only read, at %p", self->here);
  }
  std::memcpy(operand.place, &value, argument.bytes);
}

void interpret(Site& site, const Operand* operands, int count, const void* here) {
  self->here = here;
  if (site.program == nullptr) {
    site.program = new Program(Parser(site.text, operands, count).program());
  }
  const auto& program = *static_cast<const Program*>(site.program);
  constexpr std::size_t kRegisters = 16;
  if (program.registers > kRegisters) fail("PTX with too many registers, at %p", here);
  Wide registers[kRegisters];
  Frame frame{operands, registers};
  for (const Instruction& instruction : program.instructions) {
    if (instruction.predicate >= 0 &&
        (registers[instruction.predicate].low != 0) == instruction.negated) {
      continue;
    }
    instruction.run(frame);
  }
}

}  // namespace twin
