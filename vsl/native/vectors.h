// Vectors of floats for code that is compiled once per target with WAFER_LANES (floats per vector).
//
// Vector extensions of GCC and Clang, an intrinsic only where they are slow: the same source serves
// AVX-512, AVX2, SSE2 and NEON. Everything sits in an unnamed namespace: the linker must not share a function between
// targets.
#ifndef WAFER_VSL_NATIVE_VECTORS_H_
#define WAFER_VSL_NATIVE_VECTORS_H_

#include <cstdint>
#include <utility>

#if defined(__AVX512F__) && WAFER_LANES == 16
#include <immintrin.h>
#endif

#define WAFER_INLINE static inline __attribute__((always_inline))

// The name of what a per-target object exports: WAFER_JOIN(WAFER_TARGET, _norm).
#define WAFER_JOIN_(a, b) a##b
#define WAFER_JOIN(a, b) WAFER_JOIN_(a, b)

// Before a loop over an array of vectors: unrolled whole, so that they stay in registers. GCC does so
// by itself; Clang gives up where the body is long.
#define WAFER_UNROLL _Pragma("GCC unroll 64")

// Lanes of two vectors by constant numbers; GCC has the same builtin as Clang from 12 on.
#if defined(__clang__) || __GNUC__ >= 12
#define WAFER_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define WAFER_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

namespace {

constexpr int kLanes = WAFER_LANES;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef float LooseFloats __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));

WAFER_INLINE Floats Load(const float* p) { return *reinterpret_cast<const LooseFloats*>(p); }
WAFER_INLINE void Store(float* p, Floats v) { *reinterpret_cast<LooseFloats*>(p) = v; }

using AllLanes = std::make_integer_sequence<int, kLanes>;

// `Floats{} + x` would be an addition: it turns -0 into 0.
template <int... kLane>
WAFER_INLINE Floats Splat(float x, std::integer_sequence<int, kLane...>) {
  return Floats{(static_cast<void>(kLane), x)...};
}
WAFER_INLINE Floats Splat(float x) { return Splat(x, AllLanes{}); }
template <int... kLane>
WAFER_INLINE Ints LaneNumbers(std::integer_sequence<int, kLane...>) {
  return Ints{kLane...};
}

// Lane l of the result is a[l] where bit `kBit` of l is clear, else b[l ^ kBit]; and its mirror.
template <int kBit, int... kLane>
WAFER_INLINE Floats MergeLow(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return WAFER_SHUFFLE(a, b, (kLane & kBit ? kLanes + (kLane ^ kBit) : kLane)...);
}
template <int kBit, int... kLane>
WAFER_INLINE Floats MergeHigh(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return WAFER_SHUFFLE(a, b, (kLane & kBit ? kLanes + kLane : (kLane ^ kBit))...);
}

// Transposes a square of kLanes x kLanes floats held in registers, one bit of the index at a time.
template <int kBit = kLanes / 2>
WAFER_INLINE void Transpose(Floats (&v)[kLanes]) {
  WAFER_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    if (i & kBit) continue;
    const Floats a = v[i], b = v[i | kBit];
    v[i] = MergeLow<kBit>(a, b, AllLanes{});
    v[i | kBit] = MergeHigh<kBit>(a, b, AllLanes{});
  }
  if constexpr (kBit > 1) Transpose<kBit / 2>(v);
}

template <int kBit, int... kLane>
WAFER_INLINE Floats Across(Floats v, std::integer_sequence<int, kLane...>) {
  return WAFER_SHUFFLE(v, v, (kLane ^ kBit)...);
}
template <int kBit = kLanes / 2>
WAFER_INLINE float SumOfLanes(Floats v) {
  v = v + Across<kBit>(v, AllLanes{});
  if constexpr (kBit > 1) {
    return SumOfLanes<kBit / 2>(v);
  } else {
    return v[0];
  }
}

WAFER_INLINE Floats Larger(Floats a, Floats b) { return a > b ? a : b; }

template <int kBit = kLanes / 2>
WAFER_INLINE float LargestLane(Floats v) {
  v = Larger(v, Across<kBit>(v, AllLanes{}));
  if constexpr (kBit > 1) {
    return LargestLane<kBit / 2>(v);
  } else {
    return v[0];
  }
}

// 2^(n + r) to 2 units in the last place, for `shifted` = n + kMagic, -126 < n < 128, |r| <= 1/2.
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
WAFER_INLINE Floats Power(Floats shifted, Floats r) {
  Floats y = Splat(1.5345811e-4f);
  y = y * r + 1.3399931e-3f;
  y = y * r + 9.618489e-3f;
  y = y * r + 5.5503286e-2f;
  y = y * r + 2.4022646e-1f;
  y = y * r + 6.931472e-1f;
  y = y * r + 1.0f;
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(y) + (reinterpret_cast<Ints>(shifted) << 23));
}

// 2^x for x < 128; exactly 0 below -126.
WAFER_INLINE Floats Exp2(Floats x) {
  const Floats shifted = x + kMagic;
  const Floats y = Power(shifted, x - (shifted - kMagic));
  return x < -126.0f ? Floats{} : y;
}

// exp(x) for x <= 88; exactly 0 below -87.
WAFER_INLINE Floats Exp(Floats x) {
  const Floats shifted = x * 1.44269504f + kMagic;
  const Floats n = shifted - kMagic;
  Floats r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  const Floats y = Power(shifted, r * 1.44269504f);
  return x < -87.0f ? Floats{} : y;
}

// Vectors of bfloat16.
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef uint16_t LooseHalves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

WAFER_INLINE Floats AsFloats(Words w) { return reinterpret_cast<Floats>(w); }
WAFER_INLINE Words AsWords(Floats f) { return reinterpret_cast<Words>(f); }

WAFER_INLINE Floats FromBf16(Halves h) {
#if defined(__AVX512F__) && WAFER_LANES == 16  // GCC converts 16 lanes by halves
  return AsFloats(reinterpret_cast<Words>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(h))) << 16);
#else
  return AsFloats(__builtin_convertvector(h, Words) << 16);
#endif
}

// Rounds to nearest, ties to even; a NaN stays one.
WAFER_INLINE Halves ToBf16(Floats f) {
  const Words bits = AsWords(f);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet = (bits >> 16) | 0x40;
  const Words is_nan = reinterpret_cast<Words>(f != f);
  return __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), Halves);
}

// Lanes of bfloat16, and of small integers.
WAFER_INLINE Floats Load(const uint16_t* p) { return FromBf16(*reinterpret_cast<const LooseHalves*>(p)); }
WAFER_INLINE void Store(uint16_t* p, Floats v) { *reinterpret_cast<LooseHalves*>(p) = ToBf16(v); }

typedef int8_t LooseBytes __attribute__((vector_size(kLanes), aligned(1), may_alias));
WAFER_INLINE Floats Load(const int8_t* p) {
  return __builtin_convertvector(*reinterpret_cast<const LooseBytes*>(p), Floats);
}

}  // namespace

#endif  // WAFER_VSL_NATIVE_VECTORS_H_
