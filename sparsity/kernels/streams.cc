// Products of a few rows with weights that are read as one stream: dense columns, and columns whose
// kept inputs are given by steps; see decode.h. Compiled once per target.
#include "decode.h"

#include <cstring>

#include "vectors.h"

namespace {

using wafer::Columns;
using wafer::kGroup;
using wafer::Number;
using wafer::Stepped;

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
  const float* const rows = kScaled ? x + kRows * kGroup : x;
  const int64_t inputs = w.groups * kGroup;
  const auto* at = static_cast<const Value*>(w.values) + begin * inputs;
  for (int64_t n = begin; n < end; ++n) {
    Floats sums[kRows] = {};
    for (int64_t g = 0; g < w.groups; ++g) {
      __builtin_prefetch(at + inputs);
      for (int part = 0; part < kParts; ++part, at += kLanes) {
        const Floats weights = LoadValues(at);
        for (int r = 0; r < kRows; ++r) {
          sums[r] += weights * Load(rows + (g * kRows + r) * kGroup + part * kLanes);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      if (r < written) y[r * stride + n] = kScaled ? Sum(sums[r]) * (w.scales[n] * x[r]) : Sum(sums[r]);
    }
  }
}

// A weight by steps. All rows of an input lie side by side, so that one multiply-add serves them; a
// few columns go in turn, so that their sums do not wait for each other. Each is summed in order.
template <int kRows>
struct Side;
template <>
struct Side<1> {
  typedef float Sums;
  WAFER_INLINE void Add(Sums& sum, float value, const float* x) { sum += value * *x; }
  WAFER_INLINE float At(const Sums& sum, int) { return sum; }
};
#define WAFER_SIDE(rows)                                                                     \
  template <>                                                                                \
  struct Side<rows> {                                                                        \
    typedef float Sums __attribute__((vector_size(4 * rows)));                               \
    typedef float Loose __attribute__((vector_size(4 * rows), aligned(4), may_alias));       \
    WAFER_INLINE void Add(Sums& sum, float value, const float* x) {                          \
      sum += value * *reinterpret_cast<const Loose*>(x);                                     \
    }                                                                                        \
    WAFER_INLINE float At(const Sums& sum, int row) { return sum[row]; }                     \
  };
WAFER_SIDE(2)
WAFER_SIDE(4)
WAFER_SIDE(8)
WAFER_SIDE(16)
#undef WAFER_SIDE

WAFER_INLINE float Single(float value) { return value; }
WAFER_INLINE float Single(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float single;
  std::memcpy(&single, &bits, sizeof(single));
  return single;
}

template <typename Value, int kRows, int kColumns>
void MultiplySteps(const Stepped& w, const float* x, int64_t n, int64_t written, float* y,
                   int64_t stride) {
  const Value* values[kColumns];
  const uint8_t* steps[kColumns];
  const float* inputs[kColumns];
  int64_t counts[kColumns], least = w.pointers[n + 1] - w.pointers[n];
  typename Side<kRows>::Sums sums[kColumns] = {};
  for (int c = 0; c < kColumns; ++c) {
    const int64_t first = w.pointers[n + c];
    values[c] = static_cast<const Value*>(w.values) + first;
    steps[c] = w.steps + first;
    inputs[c] = x;
    counts[c] = w.pointers[n + c + 1] - first;
    least = counts[c] < least ? counts[c] : least;
  }
  const auto add = [&](int c, int64_t j) {
    inputs[c] += kRows * int64_t{steps[c][j]};
    Side<kRows>::Add(sums[c], Single(values[c][j]), inputs[c]);
  };
  for (int64_t j = 0; j < least; ++j) {
    for (int c = 0; c < kColumns; ++c) add(c, j);
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int64_t j = least; j < counts[c]; ++j) add(c, j);
    for (int r = 0; r < kRows; ++r) {
      if (r < written) y[r * stride + n + c] = Side<kRows>::At(sums[c], r);
    }
  }
}

template <typename Value, int kRows>
void RangeSteps(const Stepped& w, const float* x, int64_t begin, int64_t end, int64_t written,
                float* y, int64_t stride) {
  constexpr int kColumns = kRows > 4 ? 2 : 4;
  int64_t n = begin;
  for (; n + kColumns <= end; n += kColumns) {
    MultiplySteps<Value, kRows, kColumns>(w, x, n, written, y, stride);
  }
  for (; n < end; ++n) MultiplySteps<Value, kRows, 1>(w, x, n, written, y, stride);
}

struct ByDense {
  template <typename Value, int kRows, typename... Rest>
  WAFER_INLINE void Run(const Columns& w, Rest... rest) {
    RangeDense<Value, kRows>(w, rest...);
  }
};
struct BySteps {
  template <typename Value, int kRows, typename... Rest>
  WAFER_INLINE void Run(const Stepped& w, Rest... rest) {
    RangeSteps<Value, kRows>(w, rest...);
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

void Steps(const Stepped& w, const float* x, int rows, int64_t begin, int64_t end, int64_t written,
           float* y, int64_t stride) {
  if (w.bf16) return ForRows<BySteps, uint16_t>(rows, w, x, begin, end, written, y, stride);
  ForRows<BySteps, float>(rows, w, x, begin, end, written, y, stride);
}

}  // namespace

extern "C" const wafer::StreamKernels WAFER_JOIN(WAFER_TARGET, _streams) = {Dense, Steps};
