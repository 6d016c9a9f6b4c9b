// Arithmetic on registers (64 bits that hold a value of some type as codes.py says), and what one
// element of each operation on descriptors computes.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "codes.h"
#include "half.h"

namespace wafer::csl {

inline int bytes_of(Type type) {
  static constexpr int kBytes[] = {1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 2};
  return kBytes[int(type)];
}
inline int bits_of_type(Type type) { return 8 * bytes_of(type); }
inline bool is_signed(Type type) { return type <= Type::kI64; }
inline bool is_float(Type type) { return type == Type::kF16 || type == Type::kF32; }

// The low bits of a value as a register holds them.
inline int64_t wrapped(Type type, int64_t value) {
  static constexpr uint8_t kUnused[] = {56, 48, 32, 0, 56, 48, 32, 0, 48, 32, 63};  // bits
  const int unused = kUnused[int(type)];
  const uint64_t top = uint64_t(value) << unused;
  return is_signed(type) ? int64_t(top) >> unused : int64_t(top >> unused);
}

// `half`: the format of the program's 16-bit floats, a number of kHalfFormats; so to the end.
inline float float_in(Type type, int64_t bits, int half) {
  return type == Type::kF16 ? half_to_float(uint16_t(bits), half) : float_of(uint32_t(bits));
}
inline int64_t float_out(Type type, float value, int half) {
  return type == Type::kF16 ? float_to_half(value, half) : bits_of(value);
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
inline int64_t arithmetic(Op op, Type type, int64_t x, int64_t y, int half) {
  if (is_float(type) && op <= Op::kRem)
    return float_out(type, float_op(op, float_in(type, x, half), float_in(type, y, half)), half);
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

// Bits of FloatException in codes.py that a sum, difference, product or quotient raises.
inline int raised(Op op, Type type, int64_t x, int64_t y, int64_t result, int half) {
  const auto number = [&](int64_t bits) { return double(float_in(type, bits, half)); };
  const double a = number(x), b = number(y), r = number(result);
  if (std::isnan(r)) return (!std::isnan(a) && !std::isnan(b)) << 6;
  if (!std::isfinite(a) || !std::isfinite(b)) return 0;
  if (op == Op::kDiv && b == 0) return 1 << 7;
  if (!std::isfinite(r)) return 1 << 4 | 1 << 5;
  const double back = op == Op::kMul ? a * b - r : op == Op::kDiv ? r * b - a
                    : op == Op::kAdd ? (r - a) - b : (a - r) - b;
  const double least = std::ldexp(1.0, 1 - (type == Type::kF16 ? kHalfFormats[half].bias : 127));
  return back == 0 ? 0 : 1 << 5 | (std::abs(r) < least) << 3;
}

// The instruction that an operation's element is, if it is a sum, difference or product of floats.
inline Op single_step(DsdOp op) {
  switch (op) {
    case DsdOp::kFadds: case DsdOp::kFaddh: return Op::kAdd;
    case DsdOp::kFsubs: case DsdOp::kFsubh: return Op::kSub;
    case DsdOp::kFmuls: case DsdOp::kFmulh: return Op::kMul;
    default: return Op::kCopy;
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

inline bool compare(Op op, Type type, int64_t x, int64_t y, int half) {
  if (is_float(type)) return compare_as(op, float_in(type, x, half), float_in(type, y, half));
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

inline int64_t cast(Type to, Type from, int64_t x, int half) {
  if (to == Type::kBool) return is_float(from) ? float_in(from, x, half) != 0 : x != 0;
  if (!is_float(to)) return is_float(from) ? to_integer(to, float_in(from, x, half)) : wrapped(to, x);
  if (is_float(from)) return to == from ? x : float_out(to, float_in(from, x, half), half);
  // Integers that single precision rounds are beyond the range of half precision anyway.
  return float_out(to, is_signed(from) ? float(x) : float(uint64_t(x)), half);
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

// The significand with the exponent of 1; zeros, infinities and NaN stay.
inline float normalized(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  return 2 * std::frexp(x, &exponent);
}

inline uint32_t half_op(Op op, uint32_t a, uint32_t b, int half) {
  return float_to_half(float_op(op, half_to_float(a, half), half_to_float(b, half)), half);
}
inline uint32_t single_op(Op op, uint32_t a, uint32_t b) {
  return bits_of(float_op(op, float_of(a), float_of(b)));
}

// a + b * s in single precision, rounded twice: a store between keeps compilers from fusing them.
inline float multiply_add(float a, float b, float s) {
  volatile float product = b * s;
  return a + product;
}

// a + b * s of halves, rounded once, as FMACH does: the product is exact in double precision, and
// what the sum has no room for makes its last bit odd, so that the next roundings see it.
inline uint32_t fused_half(uint32_t a, uint32_t b, uint32_t s, int half) {
  const double x = half_to_float(a, half), y = double(half_to_float(b, half)) * half_to_float(s, half);
  const double sum = x + y, part = sum - x, lost = (x - (sum - part)) + (y - part);
  constexpr uint64_t kLost = (uint64_t(1) << 29) - 1;  // bits that single precision has no room for
  uint64_t bits;
  std::memcpy(&bits, &sum, 8);
  if (std::isfinite(sum) && lost != 0 && !(bits & 1)) bits += (lost > 0) == (sum > 0) ? 1 : -1;
  bits = (bits & kLost ? bits | kLost + 1 : bits) & ~kLost;  // to odd: the next rounding is the one
  double odd;
  std::memcpy(&odd, &bits, 8);
  return float_to_half(float(odd), half);
}

// Whether its elements are those of its first source, and it has no other.
inline bool moves(DsdOp op) {
  return op == DsdOp::kFmovs || op == DsdOp::kFmovh || op == DsdOp::kMov16 || op == DsdOp::kMov32;
}

// The bits of the result from those of the sources; `carry` goes from element to element.
inline uint32_t element(DsdOp op, uint32_t a, uint32_t b, uint32_t s, uint32_t* carry, int half) {
  switch (op) {
    case DsdOp::kFadds: return single_op(Op::kAdd, a, b);
    case DsdOp::kFsubs: return single_op(Op::kSub, a, b);
    case DsdOp::kFmuls: return single_op(Op::kMul, a, b);
    case DsdOp::kFmaxs: return bits_of(larger(float_of(a), float_of(b)));
    case DsdOp::kFaddh: return half_op(Op::kAdd, a, b, half);
    case DsdOp::kFsubh: return half_op(Op::kSub, a, b, half);
    case DsdOp::kFmulh: return half_op(Op::kMul, a, b, half);
    case DsdOp::kFmaxh: return float_to_half(larger(half_to_float(a, half), half_to_float(b, half)), half);
    case DsdOp::kFaddhs: return bits_of(half_to_float(a, half) + float_of(b));
    case DsdOp::kFmacs: return bits_of(multiply_add(float_of(a), float_of(b), float_of(s)));
    case DsdOp::kFmach: return fused_half(a, b, s, half);
    case DsdOp::kFmachs:  // a product of two halves is exact in single precision
      return bits_of(float_of(a) + half_to_float(b, half) * half_to_float(s, half));
    case DsdOp::kFnegs: return a ^ 0x80000000;
    case DsdOp::kFnegh: return a ^ 0x8000;
    case DsdOp::kFabss: return a & 0x7FFFFFFF;
    case DsdOp::kFabsh: return a & 0x7FFF;
    case DsdOp::kFs2H: return float_to_half(float_of(a), half);
    case DsdOp::kFh2S: return bits_of(half_to_float(a, half));
    case DsdOp::kFs2Xp16: return uint16_t(to_integer(Type::kI16, float_of(a)));
    case DsdOp::kFh2Xp16: return uint16_t(to_integer(Type::kI16, half_to_float(a, half)));
    case DsdOp::kXp162Fs: return bits_of(float(int16_t(a)));
    case DsdOp::kXp162Fh: return float_to_half(float(int16_t(a)), half);
    case DsdOp::kAdd16: return uint16_t(a + b);
    case DsdOp::kAddc16: {
      const uint32_t sum = uint16_t(a) + uint32_t(uint16_t(b)) + *carry;
      *carry = sum >> 16;
      return uint16_t(sum);
    }
    case DsdOp::kSub16: return uint16_t(a - b);
    case DsdOp::kAnd16: return a & b;
    case DsdOp::kOr16: return a | b;
    case DsdOp::kXor16: return a ^ b;
    case DsdOp::kSll16: return uint16_t(shifted(Op::kShl, Type::kU16, uint16_t(a), uint16_t(b)));
    case DsdOp::kSlr16: return uint16_t(shifted(Op::kShr, Type::kU16, uint16_t(a), uint16_t(b)));
    case DsdOp::kSar16: return uint16_t(shifted(Op::kShr, Type::kI16, int16_t(a), uint16_t(b)));
    case DsdOp::kClz: return a & 0xFFFF ? __builtin_clz(a & 0xFFFF) - 16 : 16;
    case DsdOp::kCtz: return a & 0xFFFF ? __builtin_ctz(a & 0xFFFF) : 16;
    case DsdOp::kPopcnt: return __builtin_popcount(a & 0xFFFF);
    case DsdOp::kFnorms: return bits_of(normalized(float_of(a)));
    case DsdOp::kFnormh: return float_to_half(normalized(half_to_float(a, half)), half);
    case DsdOp::kFscales: return bits_of(std::ldexp(float_of(a), int16_t(b)));
    case DsdOp::kFscaleh: return float_to_half(std::ldexp(half_to_float(a, half), int16_t(b)), half);
    case DsdOp::kAdd32: return a + b;
    case DsdOp::kSub32: return a - b;
    case DsdOp::kMul32: return a * b;
    case DsdOp::kMac32: return a + b * s;
    case DsdOp::kMax32: return a > b ? a : b;
    default: return a;  // moves
  }
}

}  // namespace wafer::csl
