// What one element of each operation on descriptors computes.
#pragma once
#include "scalar.h"

namespace wafer::csl {

// Bytes of an element of each operand.
struct Widths {
  uint8_t dest, src0, src1, scalar;
};

inline Widths widths_of(DsdOp op) {
  switch (op) {
    case DsdOp::kFadds: case DsdOp::kFsubs: case DsdOp::kFmuls: case DsdOp::kFmaxs:
    case DsdOp::kFmacs: case DsdOp::kFmovs: case DsdOp::kMov32: case DsdOp::kFnegs:
    case DsdOp::kFabss: case DsdOp::kFnorms: case DsdOp::kDfilt: return {4, 4, 4, 4};
    case DsdOp::kFaddhs: return {4, 2, 4, 2};
    case DsdOp::kFmachs: return {4, 4, 2, 2};
    case DsdOp::kFs2H: case DsdOp::kFs2Xp16: return {2, 4, 4, 4};
    case DsdOp::kFh2S: case DsdOp::kXp162Fs: return {4, 2, 2, 2};
    case DsdOp::kFscales: return {4, 4, 2, 2};
    default: return {2, 2, 2, 2};
  }
}

// The significand with the exponent of 1; zeros, infinities and NaN stay.
inline float normalized(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  return 2 * std::frexp(x, &exponent);
}

inline uint32_t half_op(Op op, uint32_t a, uint32_t b) {
  return float_to_half(float_op(op, half_to_float(a), half_to_float(b)));
}
inline uint32_t single_op(Op op, uint32_t a, uint32_t b) {
  return bits_of(float_op(op, float_of(a), float_of(b)));
}

// a + b * s in single precision, rounded twice: a store between keeps compilers from fusing them.
inline float multiply_add(float a, float b, float s) {
  volatile float product = b * s;
  return a + product;
}

// The bits of the result from those of the sources; `carry` goes from element to element.
inline uint32_t element(DsdOp op, uint32_t a, uint32_t b, uint32_t s, uint32_t* carry) {
  switch (op) {
    case DsdOp::kFadds: return single_op(Op::kAdd, a, b);
    case DsdOp::kFsubs: return single_op(Op::kSub, a, b);
    case DsdOp::kFmuls: return single_op(Op::kMul, a, b);
    case DsdOp::kFmaxs: return bits_of(larger(float_of(a), float_of(b)));
    case DsdOp::kFaddh: return half_op(Op::kAdd, a, b);
    case DsdOp::kFsubh: return half_op(Op::kSub, a, b);
    case DsdOp::kFmulh: return half_op(Op::kMul, a, b);
    case DsdOp::kFmaxh: return float_to_half(larger(half_to_float(a), half_to_float(b)));
    case DsdOp::kFaddhs: return bits_of(half_to_float(a) + float_of(b));
    case DsdOp::kFmacs: return bits_of(multiply_add(float_of(a), float_of(b), float_of(s)));
    case DsdOp::kFmach: return half_op(Op::kAdd, a, half_op(Op::kMul, b, s));
    case DsdOp::kFmachs:  // a product of two halves is exact in single precision
      return bits_of(float_of(a) + half_to_float(b) * half_to_float(s));
    case DsdOp::kFnegs: return a ^ 0x80000000;
    case DsdOp::kFnegh: return a ^ 0x8000;
    case DsdOp::kFabss: return a & 0x7FFFFFFF;
    case DsdOp::kFabsh: return a & 0x7FFF;
    case DsdOp::kFs2H: return float_to_half(float_of(a));
    case DsdOp::kFh2S: return bits_of(half_to_float(a));
    case DsdOp::kFs2Xp16: return uint16_t(to_integer(Type::kI16, float_of(a)));
    case DsdOp::kFh2Xp16: return uint16_t(to_integer(Type::kI16, half_to_float(a)));
    case DsdOp::kXp162Fs: return bits_of(float(int16_t(a)));
    case DsdOp::kXp162Fh: return float_to_half(float(int16_t(a)));
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
    case DsdOp::kFnormh: return float_to_half(normalized(half_to_float(a)));
    case DsdOp::kFscales: return bits_of(std::ldexp(float_of(a), int16_t(b)));
    case DsdOp::kFscaleh: return float_to_half(std::ldexp(half_to_float(a), int16_t(b)));
    default: return a;  // moves
  }
}

}  // namespace wafer::csl
