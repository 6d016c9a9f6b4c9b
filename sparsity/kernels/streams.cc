// Products of a few rows with weights that are read as one stream: dense columns, and slices of sparse
// ones; see decode.h. Compiled once per target.
#include "decode.h"

#include <algorithm>
#include <cstring>

#include "vectors.h"

#if defined(__AVX512F__) && WAFER_LANES == 16
#define WAFER_PERMUTES_128
#include <immintrin.h>
#endif

namespace {

using wafer::Columns;
using wafer::kGroup;
using wafer::kWindow;
using wafer::Layout;
using wafer::Number;
using wafer::Sliced;

constexpr int kParts = kGroup / kLanes;

typedef int8_t LooseBytes __attribute__((vector_size(kLanes), aligned(1), may_alias));

WAFER_INLINE Floats LoadValues(const float* p) { return Load(p); }
WAFER_INLINE Floats LoadValues(const uint16_t* p) {
  return FromBf16(*reinterpret_cast<const LooseHalves*>(p));
}

WAFER_INLINE Floats LoadValues(const int8_t* p) {
  return __builtin_convertvector(*reinterpret_cast<const LooseBytes*>(p), Floats);
}

WAFER_INLINE float Sum(Floats v) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) v[lane] += v[lane + half];
  }
  return v[0];
}

// Dense columns follow each other in memory. One at a time they are one stream, which prefetchers
// follow; four side by side took up to twice as long.
template <typename Value, int kRows>
void RangeDense(const Columns& w, const float* x, int64_t begin, int64_t end, int64_t written,
                float* y, int64_t stride) {
  constexpr bool kScaled = sizeof(Value) == 1;
  constexpr int kSplit = kRows == 1 ? 2 : 1;  // sums that do not wait for each other
  const float* const rows = kScaled ? x + kRows * kGroup : x;
  const int64_t inputs = w.groups * kGroup;
  const auto* at = static_cast<const Value*>(w.values) + begin * inputs;
  for (int64_t n = begin; n < end; ++n) {
    Floats sums[kSplit][kRows] = {};
    for (int64_t g = 0; g < w.groups; g += kSplit) {
      WAFER_UNROLL
      for (int s = 0; s < kSplit; ++s) {
        if (s > 0 && g + s >= w.groups) break;
        __builtin_prefetch(at + inputs);
        WAFER_UNROLL
        for (int part = 0; part < kParts; ++part, at += kLanes) {
          const Floats weights = LoadValues(at);
          WAFER_UNROLL
          for (int r = 0; r < kRows; ++r) {
            sums[s][r] += weights * Load(rows + ((g + s) * kRows + r) * kGroup + part * kLanes);
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      Floats sum = sums[0][r];
      WAFER_UNROLL
      for (int s = 1; s < kSplit; ++s) sum += sums[s][r];
      if (r < written) y[r * stride + n] = kScaled ? Sum(sum) * (w.scales[n] * x[r]) : Sum(sum);
    }
  }
}

#if defined(WAFER_PERMUTES_128)
constexpr Layout kSlicesTake = Layout::kRows;

// What 16 outputs take of the inputs from x on: of each, the one at its place.
WAFER_INLINE __m512 Permuted(const float* x, __m512i places, __mmask16 odd, __mmask16 upper) {
  const auto of = [&](int i) {
    return _mm512_permutex2var_ps(_mm512_loadu_ps(x + 2 * i * kGroup), places,
                                  _mm512_loadu_ps(x + (2 * i + 1) * kGroup));
  };
  const __m512 low = _mm512_mask_mov_ps(of(0), odd, of(1));
  return _mm512_mask_mov_ps(low, upper, _mm512_mask_mov_ps(of(2), odd, of(3)));
}

template <typename Value, int kRows>
void RangeSlices(const Sliced& w, const float* x, int64_t begin, int64_t end, int64_t written,
                 float* y, int64_t stride) {
  constexpr int64_t kAhead = 256 * kGroup;  // values and places that are asked for
  const int64_t row = w.last * kGroup + kWindow;
  for (int64_t s = begin; s < end; ++s) {
    __m512 sums[kRows] = {};
    for (int64_t v = w.pointers[s]; v < w.pointers[s + 1]; ++v) {
      const uint8_t* places = w.places + v * kGroup;
      const Value* values = static_cast<const Value*>(w.values) + v * kGroup;
      __builtin_prefetch(places + kAhead);
      __builtin_prefetch(values + kAhead);
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(places));
      const float* const inputs = x + std::min<int64_t>(_mm_movepi8_mask(bytes), w.last) * kGroup;
      const __m512i at = _mm512_cvtepu8_epi32(bytes);
      const __mmask16 odd = _mm512_test_epi32_mask(at, _mm512_set1_epi32(32));
      const __mmask16 upper = _mm512_test_epi32_mask(at, _mm512_set1_epi32(64));
      const auto weights = reinterpret_cast<__m512>(LoadValues(values));
      WAFER_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sums[r] = _mm512_fmadd_ps(Permuted(inputs + r * row, at, odd, upper), weights, sums[r]);
      }
    }
    const int32_t* order = w.order + s * kGroup;
    for (int r = 0; r < written; ++r) {
      alignas(64) float lanes[kGroup];
      _mm512_store_ps(lanes, sums[r]);
      for (int i = 0; i < kGroup && s * kGroup + i < w.outputs; ++i) y[r * stride + order[i]] = lanes[i];
    }
  }
}
#else
constexpr Layout kSlicesTake = Layout::kSides;

WAFER_INLINE float Single(float value) { return value; }
WAFER_INLINE float Single(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float single;
  std::memcpy(&single, &bits, sizeof(single));
  return single;
}

// As many floats as a row of vectors is wide. A vector of one is slower than its float.
template <int kWide>
struct Part {
  typedef float Type __attribute__((vector_size(4 * kWide)));
  typedef float Loose __attribute__((vector_size(4 * kWide), aligned(4), may_alias));
};
template <>
struct Part<1> {
  typedef float Type;
  typedef float Loose;
};

// The number that the top bits of a vector's places are.
WAFER_INLINE int64_t NumberOf(const uint8_t* places) {
  const auto bits = [](const uint8_t* half) {
    uint64_t word;
    std::memcpy(&word, half, sizeof(word));
    return ((word >> 7 & 0x0101010101010101) * 0x0102040810204080) >> 56;
  };
  return static_cast<int64_t>(bits(places + 8) << 8 | bits(places));
}

// All rows of an input lie side by side: as many as a vector holds take one multiply-add. Outputs of a
// slice go in turn, so that their sums do not wait for each other.
template <typename Value, int kRows>
void RangeSlices(const Sliced& w, const float* x, int64_t begin, int64_t end, int64_t written,
                 float* y, int64_t stride) {
  constexpr int kWide = kRows < kLanes ? kRows : kLanes, kTogether = kRows > kLanes ? 4 : 8;
  for (int64_t first = begin * kGroup; first < end * kGroup; first += kTogether) {
    const int64_t s = first / kGroup, lane = first % kGroup;
    typename Part<kWide>::Type sums[kTogether][kRows / kWide] = {};
    for (int64_t v = w.pointers[s]; v < w.pointers[s + 1]; ++v) {
      const uint8_t* places = w.places + v * kGroup;
      const Value* values = static_cast<const Value*>(w.values) + v * kGroup + lane;
      const float* const inputs = x + kRows * kGroup * std::min(NumberOf(places), w.last);
      WAFER_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const float* own = inputs + kRows * (places[lane + i] & (kWindow - 1));
        WAFER_UNROLL
        for (int part = 0; part < kRows / kWide; ++part, own += kWide) {
          sums[i][part] += Single(values[i]) * *reinterpret_cast<const typename Part<kWide>::Loose*>(own);
        }
      }
    }
    for (int i = 0; i < kTogether && first + i < w.outputs; ++i) {
      float own[kRows];
      std::memcpy(own, sums[i], sizeof(own));
      for (int r = 0; r < written; ++r) y[r * stride + w.order[first + i]] = own[r];
    }
  }
}
#endif

struct ByDense {
  template <typename Value, int kRows, typename... Rest>
  WAFER_INLINE void Run(const Columns& w, Rest... rest) {
    RangeDense<Value, kRows>(w, rest...);
  }
};
struct BySlices {
  template <typename Value, int kRows, typename... Rest>
  WAFER_INLINE void Run(const Sliced& w, Rest... rest) {
    RangeSlices<Value, kRows>(w, rest...);
  }
};

template <typename Form, typename Value, typename Weight, typename... Rest>
void ForRows(int rows, const Weight& w, Rest... rest) {
  switch (rows) {
    case 1: return Form::template Run<Value, 1>(w, rest...);
    case 2: return Form::template Run<Value, 2>(w, rest...);
    case 4: return Form::template Run<Value, 4>(w, rest...);
    case 8: return Form::template Run<Value, 8>(w, rest...);
    default: return Form::template Run<Value, 16>(w, rest...);
  }
}

void Dense(const Columns& w, const float* x, int rows, int64_t begin, int64_t end, int64_t written,
           float* y, int64_t stride) {
  switch (w.number) {
    case Number::kInt8: return ForRows<ByDense, int8_t>(rows, w, x, begin, end, written, y, stride);
    case Number::kBfloat16: return ForRows<ByDense, uint16_t>(rows, w, x, begin, end, written, y, stride);
    default: return ForRows<ByDense, float>(rows, w, x, begin, end, written, y, stride);
  }
}

void Slices(const Sliced& w, const float* x, int rows, int64_t begin, int64_t end, int64_t written,
            float* y, int64_t stride) {
  if (w.bf16) return ForRows<BySlices, uint16_t>(rows, w, x, begin, end, written, y, stride);
  ForRows<BySlices, float>(rows, w, x, begin, end, written, y, stride);
}

}  // namespace

extern "C" const wafer::StreamKernels WAFER_JOIN(WAFER_TARGET, _streams) = {Dense, kSlicesTake, Slices};
