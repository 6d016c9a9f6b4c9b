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

// 16-bit floats f16, bf16 and cb16: bits of the fraction, and the exponent's bias. The highest exponent is
// that of infinity and NaN, the lowest that of subnormal numbers.
struct HalfFormat {
  int fraction, bias;
};
constexpr HalfFormat kHalfFormats[] = {{10, 15}, {7, 127}, {9, 42}};

static inline float half_to_float(uint32_t h, int format) {
  if (!format) return half_to_float(h);
  const auto [width, bias] = kHalfFormats[format];
  const uint32_t sign = (h & 0x8000) << 16, exponent = (h & 0x7FFF) >> width;
  const uint32_t fraction = h & ((1u << width) - 1), hidden = exponent ? 1u << width : 0;
  if (exponent == 0x7FFFu >> width) return float_of(sign | 0x7F800000 | fraction << (23 - width));
  const int power = int(exponent ? exponent : 1) - bias - width;
  const float size = std::ldexp(float(fraction | hidden), power);
  return sign ? -size : size;
}

static inline uint32_t float_to_half(float value, int format) {
  if (!format) return float_to_half(value);
  const auto [width, bias] = kHalfFormats[format];
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000, size = bits & 0x7FFFFFFF;
  const uint32_t infinity = 0x7FFFu >> width << width;
  if (size > 0x7F800000) return sign | infinity | 1u << (width - 1);
  if (size == 0x7F800000) return sign | infinity;
  const uint32_t significand = (size & 0x7FFFFF) | (size >> 23 ? 1u << 23 : 0);
  const int exponent = (size >> 23 ? int(size >> 23) : 1) - 127 + bias;
  const int normal = exponent > 1 ? exponent : 1;
  const int lost = normal - exponent < 2 + width ? 23 - width + normal - exponent : 25;
  const uint32_t kept = (significand + (1u << (lost - 1)) - 1 + (significand >> lost & 1)) >> lost;
  const uint32_t rounded = (uint32_t(normal - 1) << width) + kept;
  return sign | (rounded < infinity ? rounded : infinity);
}

// The larger one; a NaN if there is one.
static inline float larger(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}

}  // namespace wafer
