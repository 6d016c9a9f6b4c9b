// Programs are users' arrays: numbers that lead outside of them are refused before they are read.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

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

}  // namespace wafer
