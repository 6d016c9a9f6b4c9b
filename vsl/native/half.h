// Bits of floats, and IEEE half precision rounded to nearest even.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace wafer {

static inline float float_of(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

static inline uint32_t bits_of(float value) {
  uint32_t out;
  std::memcpy(&out, &value, 4);
  return out;
}

static inline float half_to_float(uint32_t h) {
  const uint32_t sign = (h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return float_of(sign | 0x7F800000 | fraction << 13);
  if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = float(fraction) * 0x1p-24f;
  return sign ? -tiny : tiny;
}

static inline uint32_t float_to_half(float value) {
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000, size = bits & 0x7FFFFFFF;
  if (size > 0x7F800000) return sign | 0x7E00;
  if (size >= 0x477FF000) return sign | 0x7C00;  // rounds to infinity
  if (size < 0x38800000)                         // subnormal: the sum rounds to the last place
    return sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f));
  return sign | (((size + 0xFFF + ((size >> 13) & 1)) >> 13) - (112 << 10));
}

// The larger one; a NaN if there is one.
static inline float larger(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}

}  // namespace wafer
