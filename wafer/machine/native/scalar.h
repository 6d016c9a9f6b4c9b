// Arithmetic on registers: 64 bits that hold a value of some type as codes.py says.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "codes.h"
#include "half.h"

namespace wafer::csl {

inline int bytes_of(Type type) {
  constexpr int kBytes[] = {1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 2};
  return kBytes[int(type)];
}
inline int bits_of_type(Type type) { return 8 * bytes_of(type); }
inline bool is_signed(Type type) { return type <= Type::kI64; }
inline bool is_float(Type type) { return type == Type::kF16 || type == Type::kF32; }

// The low bits of a value as a register holds them.
inline int64_t wrapped(Type type, int64_t value) {
  switch (type) {
    case Type::kI8: return int8_t(value);
    case Type::kI16: return int16_t(value);
    case Type::kI32: return int32_t(value);
    case Type::kU8: return uint8_t(value);
    case Type::kU16: case Type::kF16: return uint16_t(value);
    case Type::kU32: case Type::kF32: return uint32_t(value);
    case Type::kBool: return value & 1;
    default: return value;
  }
}

inline float float_in(Type type, int64_t bits) {
  return type == Type::kF16 ? half_to_float(uint16_t(bits)) : float_of(uint32_t(bits));
}
inline int64_t float_out(Type type, float value) {
  return type == Type::kF16 ? float_to_half(value) : bits_of(value);
}

inline float float_op(Op op, float x, float y) {
  switch (op) {
    case Op::kAdd: return x + y;
    case Op::kSub: return x - y;
    case Op::kMul: return x * y;
    case Op::kDiv: return x / y;
    default: return std::fmod(x, y);
  }
}

inline int64_t divided(Op op, Type type, int64_t x, int64_t y) {
  if (!is_signed(type)) return int64_t(op == Op::kDiv ? uint64_t(x) / uint64_t(y) : uint64_t(x) % uint64_t(y));
  if (y == -1) return op == Op::kDiv ? int64_t(-uint64_t(x)) : 0;  // the lowest value wraps
  return op == Op::kDiv ? x / y : x % y;
}

inline int64_t shifted(Op op, Type type, int64_t x, int64_t by) {
  const bool all = by < 0 || by >= bits_of_type(type);
  if (op == Op::kShl) return all ? 0 : int64_t(uint64_t(x) << by);
  if (is_signed(type)) return all ? (x < 0 ? -1 : 0) : x >> by;
  return all ? 0 : int64_t(uint64_t(x) >> by);
}

// x op y for ADD to SHR; the divisor of integers is not 0.
inline int64_t arithmetic(Op op, Type type, int64_t x, int64_t y) {
  if (is_float(type) && op <= Op::kRem)
    return float_out(type, float_op(op, float_in(type, x), float_in(type, y)));
  switch (op) {
    case Op::kAdd: return wrapped(type, int64_t(uint64_t(x) + uint64_t(y)));
    case Op::kSub: return wrapped(type, int64_t(uint64_t(x) - uint64_t(y)));
    case Op::kMul: return wrapped(type, int64_t(uint64_t(x) * uint64_t(y)));
    case Op::kDiv: case Op::kRem: return wrapped(type, divided(op, type, x, y));
    case Op::kAnd: return x & y;
    case Op::kOr: return x | y;
    case Op::kXor: return x ^ y;
    default: return wrapped(type, shifted(op, type, x, y));
  }
}

template <class T>
bool compare_as(Op op, T x, T y) {
  switch (op) {
    case Op::kEq: return x == y;
    case Op::kNe: return x != y;
    case Op::kLt: return x < y;
    case Op::kLe: return x <= y;
    case Op::kGt: return x > y;
    default: return x >= y;
  }
}

inline bool compare(Op op, Type type, int64_t x, int64_t y) {
  if (is_float(type)) return compare_as(op, float_in(type, x), float_in(type, y));
  return is_signed(type) ? compare_as(op, x, y) : compare_as(op, uint64_t(x), uint64_t(y));
}

inline int64_t negated(Type type, int64_t x) {
  if (is_float(type)) return x ^ int64_t(1) << (bits_of_type(type) - 1);
  return wrapped(type, int64_t(-uint64_t(x)));
}

// Toward zero; out of range to the nearest end, NaN to 0.
inline int64_t to_integer(Type type, float value) {
  if (std::isnan(value)) return 0;
  const int bits = bits_of_type(type);
  const float end = std::ldexp(1.0f, is_signed(type) ? bits - 1 : bits);  // first one too large
  const int64_t highest = is_signed(type) ? int64_t(~uint64_t(0) >> (65 - bits))
                                          : wrapped(type, -1);
  if (value >= end) return highest;
  if (!is_signed(type)) return value <= 0 ? 0 : int64_t(uint64_t(value));
  return value < -end ? -highest - 1 : int64_t(value);
}

inline int64_t cast(Type to, Type from, int64_t x) {
  if (to == Type::kBool) return is_float(from) ? float_in(from, x) != 0 : x != 0;
  if (!is_float(to)) return is_float(from) ? to_integer(to, float_in(from, x)) : wrapped(to, x);
  if (is_float(from)) return to == from ? x : float_out(to, float_in(from, x));
  // Integers that single precision rounds are beyond the range of half precision anyway.
  return float_out(to, is_signed(from) ? float(x) : float(uint64_t(x)));
}

inline float function(Intrinsic which, float x) {
  switch (which) {
    case Intrinsic::kSqrt: return std::sqrt(x);
    case Intrinsic::kExp: return float(std::exp(double(x)));
    case Intrinsic::kLog: return float(std::log(double(x)));
    case Intrinsic::kSin: return float(std::sin(double(x)));
    case Intrinsic::kCos: return float(std::cos(double(x)));
    case Intrinsic::kTanh: return float(std::tanh(double(x)));
    case Intrinsic::kFloor: return std::floor(x);
    default: return std::ceil(x);
  }
}

}  // namespace wafer::csl
