// Programs and states are users' arrays: numbers that lead outside of them are refused before a cell is read.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "machine.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {

struct Range {
  const char* what;
  int64_t low, high;
};

inline std::string outside(const std::string& what, int64_t value, int64_t low, int64_t high) {
  const auto text = [](int64_t number) { return std::to_string(number); };
  if (high < low) return what + " is " + text(value) + ", but there is nothing that it could name";
  return what + " is " + text(value) + "; it must lie in " + text(low) + " to " + text(high);
}

// Says which of `count` values lies outside of a range; empty if none does.
template <class T>
std::string within(const Range& range, const T* values, int64_t count) {
  const auto bad = [&](T value) { return value < range.low || value > range.high; };
  bool any = false;  // without an exit, so that compilers vectorise it
  for (int64_t i = 0; i < count; ++i) any |= bad(values[i]);
  if (!any) return {};
  return outside(range.what, *std::find_if(values, values + count, bad), range.low, range.high);
}

// Says what is wrong with a header's first numbers.
template <size_t n>
std::string header_problem(const int32_t* header, int64_t count, const Range (&ranges)[n]) {
  if (count < int64_t(n))
    return "the header has " + std::to_string(count) + " numbers; it must have " +
           std::to_string(n) + " or more";
  for (size_t k = 0; k < n; ++k)
    if (const auto wrong = within(ranges[k], header + k, 1); !wrong.empty()) return wrong;
  return {};
}

inline std::string count_problem(const char* what, int64_t count, int64_t wanted) {
  if (count == wanted) return {};
  return std::string(what) + ": " + std::to_string(count) + " elements; the header says " +
         std::to_string(wanted);
}

// A buffer's element type and size.
struct Wanted {
  const char* what;
  xla::ffi::DataType type;
  int64_t count;
};
inline std::string buffer_problem(const xla::ffi::AnyBuffer& buffer, const Wanted& wanted) {
  if (buffer.element_type() != wanted.type)
    return std::string(wanted.what) + " has a wrong element type";
  return count_problem(wanted.what, int64_t(buffer.element_count()), wanted.count);
}

// The least and the greatest address of an operand's first n elements; n is not 0.
inline std::pair<int64_t, int64_t> span(const Operand& o, int64_t n) {
  const int64_t inner = o.inner > 0 ? std::min<int64_t>(o.inner, n) : n, whole = n - n % inner;
  const int64_t corners[] = {0, inner - 1, whole - inner, whole - 1, std::min(whole, n - 1), n - 1};
  std::pair<int64_t, int64_t> out{INT64_MAX, INT64_MIN};
  for (const int64_t i : corners) {
    const int64_t at = address(o, int(i));
    out = {std::min(out.first, at), std::max(out.second, at)};
  }
  return out;
}

// Says which of an operation's operands leads outside of the memory or the colors.
inline std::string operand_problem(const Op& op, const Program& p) {
  const Operand* const all[] = {&op.dst, &op.src[0], &op.src[1], &op.src[2]};
  const bool is_read[] = {true, true, op.opcode > kMov, op.opcode == kMac};
  for (int k = 0; k < 4; ++k) {
    const Operand& o = *all[k];
    if (o.kind == kFabric) {
      const Range colors{"an operand's color", 0, p.colors - 1};
      if (const auto wrong = within(colors, &o.base, 1); !wrong.empty()) return wrong;
    }
    if (o.kind != kMem || op.dst.kind == kNone || !is_read[k] || op.n == 0) continue;
    const auto [low, high] = span(o, op.n);
    if (low < 0 || high >= p.words)
      return outside("an operand's address", low < 0 ? low : high, 0, p.words - 1);
  }
  return {};
}

// Says what is wrong with an operation.
inline std::string op_problem(const Op& op, const Program& p) {
  constexpr int64_t kMost = INT32_MAX;
  const std::pair<int, Range> columns[] = {
      {op.opcode, {"opcode", kWork, kMax}}, {op.dtype, {"dtype", kFloat32, kUint32}},
      {op.n, {"the number of elements", 0, kMost}}, {op.rate, {"rate", 1, kMost}},
      {op.thread, {"microthread", -1, p.threads - 2}},
      {op.position_color, {"the color whose switch is set, plus 1,", 0, p.colors}},
      {op.position_color && op.position != kTorn ? op.position : 0,
       {"switch position", 0, p.positions - 1}},
  };
  for (const auto& [value, range] : columns)
    if (const auto wrong = within(range, &value, 1); !wrong.empty()) return wrong;
  return operand_problem(op, p);
}

// Says what is wrong with the code: every operation that does not end its task has one behind it.
inline std::string code_problem(const Program& p, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row)
    if (const auto wrong = op_problem(p.code[row], p); !wrong.empty())
      return "operation " + std::to_string(row) + ": " + wrong;
  if (rows && !p.code[rows - 1].last)
    return "operation " + std::to_string(rows - 1) + " is the last one, but does not end its task";
  return {};
}

inline std::string task_problem(const Program& p) {
  for (const Task& task : p.order) {
    const int64_t most = task.kind == kData ? p.colors - 1 : INT32_MAX;
    const std::pair<int, Range> columns[] = {
        {task.id, {"a task's id", 0, p.tasks - 1}},
        {task.kind, {"a task's kind", kLocal, kControlTask}},
        {task.key, {"a task's color or control id", task.kind == kLocal ? INT32_MIN : 0, most}},
    };
    for (const auto& [value, range] : columns)
      if (const auto wrong = within(range, &value, 1); !wrong.empty()) return wrong;
  }
  return {};
}

// Says what is wrong with a program whose buffers have the right sizes.
inline std::string program_problem(const Program& p, int64_t rows) {
  const int64_t lanes = int64_t(p.colors) * p.pes(), routes = p.positions * lanes;
  std::string wrong[] = {
      within({"a color's partner", 0, p.colors - 1}, p.partner, p.colors),
      within({"a queue's depth", 1, p.depth}, p.limit, p.colors),
      within({"a mask of ports (rx)", 0, 31}, p.rx, routes),
      within({"a mask of ports (tx)", 0, 31}, p.tx, routes),
      within({"the number of switch positions", 0, p.positions}, p.defined, lanes),
      within({"a task's first operation", -1, rows - 1}, p.entry, int64_t(p.tasks) * p.pes()),
      task_problem(p),
      code_problem(p, rows),
  };
  for (std::string& one : wrong)
    if (!one.empty()) return std::move(one);
  return {};
}

// Says what is wrong with a state whose buffers have the right sizes, of a program without faults.
inline std::string state_problem(const Program& p, const State& s, int64_t rows) {
  const int64_t lanes = int64_t(p.colors) * p.pes(), threads = int64_t(p.threads) * p.pes();
  for (const uint8_t* positions : {s.pos_rx, s.pos_tx})
    for (int64_t i = 0; p.switched && i < lanes; ++i)
      if (positions[i] >= p.positions && positions[i] != kTorn)
        return outside("a switch position", positions[i], 0, p.positions - 1);
  if (auto wrong = within({"a thread's operation", INT32_MIN, rows - 1}, s.pc, threads);
      !wrong.empty())
    return wrong;
  for (int64_t i = 0; i < threads; ++i)
    if (s.pc[i] >= 0 && (s.left[i] < 0 || s.left[i] > p.code[s.pc[i]].n))
      return outside("a thread's elements to go", s.left[i], 0, p.code[s.pc[i]].n);
  return {};
}

}  // namespace wafer
