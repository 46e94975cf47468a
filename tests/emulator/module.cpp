// SPDX-License-Identifier: Apache-2.0
#include "emulator/module.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstring>
#include <stdexcept>

namespace fmmformer::emulator {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}
/// The text up to white space, which is taken away.
std::string_view take_word(std::string_view& text) {
  text = trimmed(text);
  size_t end = 0;
  while (end < text.size() && !is_space(text[end])) ++end;
  const std::string_view word = text.substr(0, end);
  text = trimmed(text.substr(end));
  return word;
}

[[noreturn]] void fail(std::string_view what, std::string_view where) {
  throw std::runtime_error(std::string(what) + ": " + std::string(where));
}

int64_t to_integer(std::string_view text) {
  std::string_view digits = text;
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  const bool hexadecimal = digits.starts_with("0x") || digits.starts_with("0X");
  if (hexadecimal) digits.remove_prefix(2);
  if (digits.ends_with('U')) digits.remove_suffix(1);
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, hexadecimal ? 16 : 10);
  if (error != std::errc() || end != digits.data() + digits.size()) fail("not a number", text);
  return static_cast<int64_t>(negative ? -value : value);
}

int64_t size_of_type(std::string_view type) {
  const size_t digits = type.find_first_of("0123456789");
  return digits == std::string_view::npos ? 1 : to_integer(type.substr(digits)) / 8;
}

/// `.align 8 .b8 name[856]`, after the state space: size and name.
struct Declaration {
  std::string name;
  int64_t align = 1, bytes = 0, element = 1;
};
Declaration declaration_of(std::string_view text) {
  Declaration made;
  for (;;) {
    const std::string_view word = take_word(text);
    if (word.empty()) fail("a variable without a name", text);
    if (word == ".align") {
      made.align = to_integer(take_word(text));
    } else if (word.starts_with('.')) {
      made.element = size_of_type(word), made.align = std::max(made.align, made.element);
    } else {
      const size_t bracket = word.find('[');
      made.name = std::string(word.substr(0, bracket));
      made.bytes = made.element;
      if (bracket == std::string_view::npos) return made;
      const std::string_view count = word.substr(bracket + 1, word.find(']') - bracket - 1);
      made.bytes *= count.empty() ? 0 : to_integer(count);
      return made;
    }
  }
}
int64_t placed(int64_t& used, const Declaration& declaration) {
  const int64_t at = (used + declaration.align - 1) / declaration.align * declaration.align;
  used = at + declaration.bytes;
  return at;
}

/// Cuts a kernel's body into statements, labels and braces.
class Statements {
 public:
  explicit Statements(std::string_view text) : text_(text) {}

  /// The next one; `end` is ';' after a statement, ':' after a label, or a brace. False at the end.
  bool next(std::string_view& statement, char& end) {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    if (at_ == text_.size()) return false;
    const size_t begin = at_;
    if (text_[at_] == '{' || text_[at_] == '}') {
      end = text_[at_++];
      return true;
    }
    while (at_ < text_.size() && text_[at_] != ';' && !is_label(begin)) ++at_;
    if (at_ == text_.size()) fail("a statement without an end", text_.substr(begin));
    end = text_[at_];
    statement = trimmed(text_.substr(begin, at_++ - begin));
    return true;
  }

 private:
  bool is_label(size_t begin) const {
    const auto colon = [&](size_t at) { return at < text_.size() && text_[at] == ':'; };
    return colon(at_) && !colon(at_ + 1) && !colon(at_ - 1) &&
           std::none_of(text_.begin() + begin, text_.begin() + at_, is_space);
  }

  std::string_view text_;
  size_t at_ = 0;
};

/// Reads one kernel.
class Reader {
 public:
  Reader(Kernel& kernel, const std::map<std::string, Variable>& globals)
      : kernel_(kernel), variables_(globals) {
    scopes_.emplace_back();
  }

  void read_parameters(std::string_view list) {
    while (!list.empty()) {
      const size_t comma = list.find(',');
      std::string_view one = list.substr(0, comma);
      list = comma == std::string_view::npos ? "" : list.substr(comma + 1);
      if (take_word(one) != ".param") fail("not a parameter", one);
      const Declaration declaration = declaration_of(one);
      const int64_t at = placed(kernel_.parameter_bytes, declaration);
      kernel_.parameter_offsets.push_back(at), kernel_.parameter_sizes.push_back(declaration.bytes);
      variables_[declaration.name] = {Variable::Space::kParameter, at};
    }
  }
  void read_body(std::string_view body) {
    Statements statements(body);
    std::string_view statement;
    for (char end = 0; statements.next(statement, end);) {
      if (end == '{') {
        scopes_.emplace_back();
      } else if (end == '}') {
        close_scope();
      } else if (end == ':') {
        scopes_.back().labels[std::string(statement)] = static_cast<int>(kernel_.code.size());
      } else if (statement.starts_with('.')) {
        declare(statement);
      } else {
        read_instruction(statement);
      }
    }
    read_instruction("ret");  // a body may end without
    close_scope();
    kernel_.registers = registers_;
  }

 private:
  struct Scope {
    std::map<std::string, int> registers, labels;
    std::vector<std::pair<int, std::string>> branches;  // instructions whose label is not found yet
  };

  void close_scope() {
    Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (auto& [instruction, label] : scope.branches) {
      const auto found = scope.labels.find(label);
      if (found != scope.labels.end())
        kernel_.code[static_cast<size_t>(instruction)].target = found->second;
      else if (scopes_.empty())
        fail("no such label", label);
      else
        scopes_.back().branches.emplace_back(instruction, label);
    }
  }
  void declare(std::string_view statement) {
    const std::string_view space = take_word(statement);
    if (space == ".reg") {
      take_word(statement);  // the type: all registers have 64 bits here
      while (!statement.empty()) {
        const size_t comma = statement.find(',');
        declare_registers(trimmed(statement.substr(0, comma)));
        statement = comma == std::string_view::npos ? "" : statement.substr(comma + 1);
      }
    } else if (space == ".shared" || space == ".local") {
      const bool shared = space == ".shared";
      const Declaration declaration = declaration_of(statement);
      variables_[declaration.name] = {
          shared ? Variable::Space::kShared : Variable::Space::kLocal,
          placed(shared ? kernel_.shared_bytes : kernel_.local_bytes, declaration)};
    } else if (space != ".pragma") {
      fail("an unknown directive", space);
    }
  }
  void declare_registers(std::string_view name) {
    const size_t bracket = name.find('<');
    if (bracket == std::string_view::npos) {
      scopes_.back().registers[std::string(name)] = registers_++;
      return;
    }
    const std::string stem(name.substr(0, bracket));
    const int64_t count = to_integer(name.substr(bracket + 1, name.find('>') - bracket - 1));
    for (int64_t i = 0; i < count; ++i)
      scopes_.back().registers[stem + std::to_string(i)] = registers_++;
  }

  void read_instruction(std::string_view statement) {
    Instruction made;
    made.text = statement;
    if (statement.starts_with('@')) {
      std::string_view guard = take_word(statement).substr(1);
      made.unless = guard.starts_with('!');
      made.guard = register_of(made.unless ? guard.substr(1) : guard);
    }
    const std::string_view opcode = take_word(statement);
    const auto meaning = meanings().find(opcode);
    if (meaning != meanings().end())
      made.action = meaning->second.action, made.flow = meaning->second.flow;
    if (made.flow == Flow::kBranch)
      scopes_.back().branches.emplace_back(int(kernel_.code.size()), std::string(statement));
    else
      read_operands(statement, made);
    kernel_.code.push_back(std::move(made));
  }
  /// Operands one after the other, whatever brackets and braces group them.
  void read_operands(std::string_view list, Instruction& made) {
    size_t at = 0;
    while (at < list.size()) {
      const size_t end = std::min(list.find_first_of(",|{}[]", at), list.size());
      const std::string_view one = trimmed(list.substr(at, end - at));
      if (!one.empty()) made.operands.push_back(operand_of(one));
      at = end + 1;
    }
  }
  Operand operand_of(std::string_view text) {
    const size_t plus = text.find('+', 1);
    if (plus == std::string_view::npos) return {register_of(text), 0};
    return {register_of(trimmed(text.substr(0, plus))), to_integer(trimmed(text.substr(plus + 1)))};
  }
  int register_of(std::string_view text) {
    const std::string name(text);
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->registers.find(name);
      if (found != scope->registers.end()) return found->second;
    }
    auto& known = scopes_.front().registers;  // a kernel's constants are all one scope's
    const int number = registers_++;
    if (name == "_") return number;  // what is written there is lost
    known[name] = number;
    if (const auto variable = variables_.find(name); variable != variables_.end())
      kernel_.addresses.emplace_back(number, variable->second);
    else if (name.starts_with('%'))
      kernel_.special_registers.emplace_back(number, text);
    else
      kernel_.constants.emplace_back(number, constant_of(text));
    return number;
  }
  static uint64_t constant_of(std::string_view text) {
    if (text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d") ||
        text.starts_with("0D"))
      return static_cast<uint64_t>(to_integer("0x" + std::string(text.substr(2))));
    return static_cast<uint64_t>(to_integer(text));
  }

  Kernel& kernel_;
  std::map<std::string, Variable> variables_;
  std::vector<Scope> scopes_;
  int registers_ = 0;
};

/// Without comments, and without the lines that say where code comes from.
std::string without_comments(const std::string& text) {
  std::string kept;
  kept.reserve(text.size());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    line = line.substr(0, line.find("//"));
    const std::string_view content = trimmed(line);
    if (!content.starts_with(".loc\t") && !content.starts_with(".loc ") &&
        !content.starts_with(".file"))
      kept.append(line).push_back('\n');
    begin = end + 1;
  }
  return kept;
}

size_t end_of_braces(std::string_view text, size_t begin) {
  int depth = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    if (text[at] == '{') ++depth;
    if (text[at] == '}' && --depth == 0) return at;
  }
  fail("braces that do not close", text.substr(begin, 80));
}

}  // namespace

Module::Module(std::string text) : text_(without_comments(text)) {
  const std::string_view all = text_;
  size_t at = 0;
  while (at < all.size()) {
    // At the module's level: directives, variables, functions.
    const size_t end = std::min(all.find_first_of(";{\n", at), all.size());
    const std::string_view statement = trimmed(all.substr(at, end - at));
    const size_t entry = statement.find(".entry ");
    if (entry != std::string_view::npos) {
      std::string_view name = trimmed(statement.substr(entry + 7));
      name = trimmed(name.substr(0, name.find('(')));
      begins_[std::string(name)] = static_cast<size_t>(name.data() + name.size() - text_.data());
      at = end_of_braces(all, all.find('{', end)) + 1;
    } else {
      // An array's first numbers may be in braces.
      const size_t whole = end < all.size() && all[end] == '{' ? all.find(';', end) : end;
      find_variable(trimmed(all.substr(at, whole - at)));
      at = whole == std::string_view::npos ? all.size() : whole + 1;
    }
  }
}

void Module::find_variable(std::string_view statement) {
  const bool external = statement.starts_with(".extern ");
  for (const std::string_view prefix : {".extern ", ".visible ", ".weak "})
    if (statement.starts_with(prefix)) statement = trimmed(statement.substr(prefix.size()));
  const std::string_view space = statement.substr(0, statement.find(' '));
  if (space != ".global" && space != ".const" && space != ".shared") return;
  std::string_view rest = statement.substr(space.size());
  const size_t equals = rest.find('=');
  const Declaration declaration = declaration_of(rest.substr(0, equals));
  if (space == ".shared") {
    // Every kernel has room for all of a module's.
    variables_[declaration.name] =
        external ? Variable{Variable::Space::kDynamicShared, 0}
                 : Variable{Variable::Space::kShared, placed(shared_bytes_, declaration)};
    return;
  }
  std::vector<uint64_t>& memory = memory_[declaration.name];
  memory.resize(static_cast<size_t>(declaration.bytes + 7) / 8);
  if (equals != std::string_view::npos) {
    auto* bytes = reinterpret_cast<unsigned char*>(memory.data());
    std::string_view list = rest.substr(equals + 1);
    list = list.substr(list.find('{') + 1);  // a single number has no braces
    for (int64_t at = 0; at < declaration.bytes && !list.empty(); at += declaration.element) {
      const size_t comma = std::min(list.find_first_of(",}"), list.size());
      const int64_t number = to_integer(trimmed(list.substr(0, comma)));
      std::memcpy(bytes + at, &number, static_cast<size_t>(declaration.element));
      list = list.substr(std::min(comma + 1, list.size()));
    }
  }
  variables_[declaration.name] = {Variable::Space::kGlobal,
                                  static_cast<int64_t>(std::bit_cast<intptr_t>(memory.data()))};
}

const Kernel& Module::kernel(const std::string& name) {
  const auto known = kernels_.find(name);
  if (known != kernels_.end()) return known->second;
  const auto begin = begins_.find(name);
  if (begin == begins_.end()) fail("no such kernel", name);
  const std::string_view rest = std::string_view(text_).substr(begin->second);
  const size_t open = rest.find('('), close = rest.find(')'), body = rest.find('{', close);
  Kernel kernel;
  kernel.name = name, kernel.shared_bytes = shared_bytes_;
  Reader reader(kernel, variables_);
  reader.read_parameters(trimmed(rest.substr(open + 1, close - open - 1)));
  reader.read_body(rest.substr(body + 1, end_of_braces(rest, body) - body - 1));
  return kernels_[name] = std::move(kernel);
}

}  // namespace fmmformer::emulator
