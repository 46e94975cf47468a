// SPDX-License-Identifier: Apache-2.0
// Kernels as nvcc leaves them before they are assembled: PTX, read from its text.
//
// Whatever an instruction reads is a register here: numbers and addresses of variables are
// registers that nobody writes. So every operand is found in the same way.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fmmformer::emulator {

class Warp;
struct Instruction;

constexpr int kWarpSize = 32;
using Lanes = uint32_t;  // a bit for each

/// Carries an instruction out for some lanes of a warp.
using Action = void (*)(Warp& warp, const Instruction& instruction, Lanes lanes);

struct Operand {
  int number = 0;      // of the register
  int64_t offset = 0;  // of an address [register + offset]
};

/// How a warp goes on after an instruction.
enum class Flow {
  kOn,        // with the next
  kBranch,    // lanes may part
  kExit,      // these lanes are done
  kTogether,  // with the next, but all lanes must have come
  kBarrier,   // likewise; and the warp may have to wait for others
  kWait,      // with the next; what it waits for may not have happened: others' turn
};

struct Instruction {
  Action action = nullptr;
  Flow flow = Flow::kOn;
  int guard = -1;  // the predicate, if there is one
  bool unless = false;
  int target = -1;  // of a branch
  std::vector<Operand> operands;
  std::string_view text;  // as the module has it

  const Operand& operator[](size_t i) const { return operands[i]; }
};

/// A variable whose address an operand is.
struct Variable {
  enum class Space { kParameter, kShared, kDynamicShared, kLocal, kGlobal } space;
  int64_t offset = 0;  // in its space; of kGlobal, the address itself
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  int registers = 0;
  std::vector<std::pair<int, uint64_t>> constants;                  // registers with a number
  std::vector<std::pair<int, Variable>> addresses;                  // ... with a variable's address
  std::vector<std::pair<int, std::string_view>> special_registers;  // ... such as %tid.x
  std::vector<int64_t> parameter_offsets, parameter_sizes;
  int64_t parameter_bytes = 0, shared_bytes = 0, local_bytes = 0;
};

/// The kernels of one source file. A kernel is read when it is asked for.
class Module {
 public:
  /// Throws std::runtime_error where the text is not PTX as this reader knows it.
  explicit Module(std::string text);
  Module(const Module&) = delete;

  const Kernel& kernel(const std::string& name);

 private:
  std::string text_;
  std::map<std::string, size_t> begins_;       // where an .entry's name ends
  std::map<std::string, Variable> variables_;  // of the module
  std::map<std::string, std::vector<uint64_t>> memory_;
  int64_t shared_bytes_ = 0;  // of these
  std::map<std::string, Kernel> kernels_;

  void find_variable(std::string_view statement);
};

/// The action of an opcode, and how a warp goes on after it. An unknown one throws when it is
/// carried out, not before: much of a kernel may never be.
struct Meaning {
  Action action;
  Flow flow = Flow::kOn;
};
using Meanings = std::map<std::string, Meaning, std::less<>>;
const Meanings& meanings();

}  // namespace fmmformer::emulator
