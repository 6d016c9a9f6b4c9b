// Arithmetic of wafer/fabric/engines/alu.py: every product and sum is rounded separately.
#pragma once
#include <cmath>

#include "codes.h"
#include "half.h"

namespace wafer {

static inline uint32_t float_to_bfloat(float value) {
  const uint32_t bits = bits_of(value);
  if (std::isnan(value)) return (bits >> 16 & 0x8000) | 0x7FC0;
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

static inline float to_float(uint32_t bits, int dtype) {
  if (dtype == kFloat32) return float_of(bits);
  return dtype == kFloat16 ? half_to_float(bits) : float_of(bits << 16);
}

static inline uint32_t from_float(float value, int dtype) {
  if (dtype == kFloat32) return bits_of(value);
  return dtype == kFloat16 ? float_to_half(value) : float_to_bfloat(value);
}

static inline uint32_t compute(int opcode, int dtype, uint32_t a, uint32_t b, uint32_t s) {
  if (opcode <= kMov) return a;
  if (dtype == kUint32) {
    switch (opcode) {
      case kAdd: return a + b;
      case kSub: return a - b;
      case kMul: return a * b;
      case kMac: return a + b * s;
      default: return a > b ? a : b;
    }
  }
  const float x = to_float(a, dtype), y = to_float(b, dtype);
  switch (opcode) {
    case kAdd: return from_float(x + y, dtype);
    case kSub: return from_float(x - y, dtype);
    case kMul: return from_float(x * y, dtype);
    case kMac: {
      // A store between, so that no compiler contracts the two.
      volatile uint32_t product = from_float(y * to_float(s, dtype), dtype);
      return from_float(x + to_float(product, dtype), dtype);
    }
    default: return from_float(larger(x, y), dtype);
  }
}

}  // namespace wafer
