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
using wafer::kEach;
using wafer::kWindow;
using wafer::Layout;
using wafer::Number;
using wafer::Sliced;

constexpr int kParts = kGroup / kLanes;

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
          const Floats weights = Load(at);
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
      if (r < written) y[r * stride + n] = kScaled ? SumOfLanes(sum) * (w.scales[n] * x[r]) : SumOfLanes(sum);
    }
  }
}

#if defined(WAFER_PERMUTES_128)
constexpr Layout kSlicesTake = Layout::kRows;

// Values i and i + 1 of a group's outputs.
WAFER_INLINE void Load2(const float* group, int i, __m512* to) {
  to[0] = _mm512_loadu_ps(group + i * kGroup), to[1] = _mm512_loadu_ps(group + (i + 1) * kGroup);
}
WAFER_INLINE void Load2(const uint16_t* group, int i, __m512* to) {
  const __m512i both = _mm512_loadu_si512(group + i * kGroup);
  to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  to[1] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

// The inputs, of kWindow, at the places in byte i of each lane.
WAFER_INLINE __m512 Placed(const __m512* x, __m512i places, int i) {
  const __m512i at = _mm512_srli_epi32(places, 8 * i);  // the lower bits count
  const auto half = [&](int from) {
    const __mmask16 odd = _mm512_test_epi32_mask(places, _mm512_set1_epi32(32 << 8 * i));
    return _mm512_mask_mov_ps(_mm512_permutex2var_ps(x[from], at, x[from + 1]), odd,
                              _mm512_permutex2var_ps(x[from + 2], at, x[from + 3]));
  };
  return _mm512_mask_mov_ps(half(0), _mm512_test_epi32_mask(places, _mm512_set1_epi32(64 << 8 * i)), half(4));
}

template <typename Value, int kRows>
void RangeSlices(const Sliced& w, const float* x, int64_t begin, int64_t end, int64_t written,
                 float* y, int64_t stride) {
  constexpr int64_t kSize = kGroup * kEach, kAhead = 64 * kSize;
  const int64_t row = w.last * kGroup + kWindow;
  for (int64_t s = begin; s < end; ++s) {
    __m512 sums[kRows][2] = {};
    for (int64_t g = w.pointers[s]; g < w.pointers[s + 1]; ++g) {
      const Value* values = static_cast<const Value*>(w.values) + g * kSize;
      WAFER_UNROLL
      for (int i = 0; i < kSize; i += 64 / sizeof(Value)) __builtin_prefetch(values + kAhead + i);
      __builtin_prefetch(w.places + g * kSize + kAhead);
      const __m512i places = _mm512_loadu_si512(w.places + g * kSize);
      const int64_t number = std::min<int64_t>(_mm512_movepi32_mask(places), w.last);
      __m512 weights[kEach];
      Load2(values, 0, weights), Load2(values, 2, weights + 2);
      WAFER_UNROLL
      for (int r = 0; r < kRows; ++r) {
        __m512 inputs[kWindow / kGroup];
        WAFER_UNROLL
        for (int i = 0; i < kWindow / kGroup; ++i) {
          inputs[i] = _mm512_loadu_ps(x + r * row + (number + i) * kGroup);
        }
        WAFER_UNROLL
        for (int i = 0; i < kEach; ++i) {
          sums[r][i % 2] = _mm512_fmadd_ps(Placed(inputs, places, i), weights[i], sums[r][i % 2]);
        }
      }
    }
    const int32_t* order = w.order + s * kGroup;
    for (int r = 0; r < written; ++r) {
      alignas(64) float lanes[kGroup];
      _mm512_store_ps(lanes, _mm512_add_ps(sums[r][0], sums[r][1]));
      for (int i = 0; i < kGroup && s * kGroup + i < w.outputs; ++i) y[r * stride + order[i]] = lanes[i];
    }
  }
}
#else
constexpr Layout kSlicesTake = Layout::kSides;

// Value i of an output of a group.
WAFER_INLINE float One(const float* group, int64_t output, int i) { return group[i * kGroup + output]; }
WAFER_INLINE float One(const uint16_t* group, int64_t output, int i) {
  const uint32_t bits = uint32_t{group[i / 2 * 2 * kGroup + output * 2 + i % 2]} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
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

// The number that the top bits of outputs' last places are.
WAFER_INLINE int64_t NumberOf(const uint8_t* places) {
  int64_t number = 0;
  for (int i = 0; i < kGroup; ++i) number |= int64_t{places[i * kEach + kEach - 1]} >> 7 << i;
  return number;
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
    for (int64_t g = w.pointers[s]; g < w.pointers[s + 1]; ++g) {
      const uint8_t* places = w.places + g * kGroup * kEach;
      const Value* values = static_cast<const Value*>(w.values) + g * kGroup * kEach;
      const float* const inputs = x + kRows * kGroup * std::min(NumberOf(places), w.last);
      WAFER_UNROLL
      for (int j = 0; j < kEach; ++j) {
        WAFER_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          const float* own = inputs + kRows * (places[(lane + i) * kEach + j] & (kWindow - 1));
          WAFER_UNROLL
          for (int part = 0; part < kRows / kWide; ++part, own += kWide) {
            sums[i][part] += One(values, lane + i, j) * *reinterpret_cast<const typename Part<kWide>::Loose*>(own);
          }
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
