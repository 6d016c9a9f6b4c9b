// Rows of LayerNorm and RMSNorm; see rows.h. Compiled once per target with WAFER_TARGET (prefix of
// the exported table) and WAFER_LANES (floats per vector).
//
// A row is read from memory once and then lies in the first-level cache for the passes that follow.
// Everything sits in an unnamed namespace, see vectors.h.
#include "rows.h"

#include <cstring>
#include <type_traits>

#include "vectors.h"

namespace {

using wafer::Normalization;

// V numbers at p: a float or a vector of them. Elements are float, or the bits of bfloat16.
template <typename V, typename Element>
WAFER_INLINE V Get(const Element* p) {
  constexpr bool kOne = std::is_same_v<V, float>;
  if constexpr (std::is_same_v<Element, float>) {
    if constexpr (kOne) return *p;
    else return Load(p);
  } else {
    if constexpr (kOne) return FromBf16(Halves{} + *p)[0];
    else return FromBf16(*reinterpret_cast<const LooseHalves*>(p));
  }
}
template <typename V, typename Element>
WAFER_INLINE void Put(Element* p, V v) {
  constexpr bool kOne = std::is_same_v<V, float>;
  if constexpr (std::is_same_v<Element, float>) {
    if constexpr (kOne) *p = v;
    else Store(p, v);
  } else {
    if constexpr (kOne) *p = ToBf16(Splat(v))[0];
    else *reinterpret_cast<LooseHalves*>(p) = ToBf16(v);
  }
}

// Calls f with a zero, whose type says how many numbers to take, and the place of the first one.
template <typename F>
WAFER_INLINE void ForRow(int64_t features, F f) {
  int64_t i = 0;
  for (; i + kLanes <= features; i += kLanes) f(Floats{}, i);
  for (; i < features; ++i) f(0.0f, i);
}

struct Sum {
  Floats lanes{};
  float rest = 0;
  __attribute__((always_inline)) void operator+=(Floats v) { lanes += v; }
  __attribute__((always_inline)) void operator+=(float v) { rest += v; }
  float Mean(int64_t count) const { return (SumOfLanes(lanes) + rest) / static_cast<float>(count); }
};

struct Statistics {
  float mean = 0, factor;

  template <typename Element>
  Statistics(const Normalization& call, const Element* x) {
    Sum values, squares;
    if (call.centered) {
      ForRow(call.features, [&](auto zero, int64_t i) { values += Get<decltype(zero)>(x + i); });
      mean = values.Mean(call.features);
    }
    ForRow(call.features, [&](auto zero, int64_t i) {
      const auto d = Get<decltype(zero)>(x + i) - mean;
      squares += d * d;
    });
    factor = 1 / __builtin_sqrtf(squares.Mean(call.features) + call.eps);
  }
};

template <typename Element>
void ForwardRows(const Normalization& call, int64_t from, int64_t to, const float* bias, void* y) {
  for (int64_t r = from; r < to; ++r) {
    const Element* x = static_cast<const Element*>(call.x) + r * call.features;
    Element* out = static_cast<Element*>(y) + r * call.features;
    const Statistics row(call, x);
    ForRow(call.features, [&](auto zero, int64_t i) {
      using V = decltype(zero);
      const V unit = (Get<V>(x + i) - row.mean) * row.factor;
      Put<V>(out + i, unit * Get<V>(call.scale + i) + Get<V>(bias + i));
    });
  }
}

template <typename Element, bool kAdd>
void BackwardRows(const Normalization& call, int64_t from, int64_t to, const void* dy,
                  const void* added, void* dx, float* sums) {
  float* const d_bias = sums + call.features;
  std::memset(sums, 0, sizeof(float) * 2 * call.features);
  for (int64_t r = from; r < to; ++r) {
    const Element* x = static_cast<const Element*>(call.x) + r * call.features;
    const Element* d_out = static_cast<const Element*>(dy) + r * call.features;
    const Element* more = kAdd ? static_cast<const Element*>(added) + r * call.features : nullptr;
    Element* out = static_cast<Element*>(dx) + r * call.features;
    const Statistics row(call, x);
    Sum level, slope;  // of the gradient of the row: along a constant, and along the row
    ForRow(call.features, [&](auto zero, int64_t i) {
      using V = decltype(zero);
      const V unit = (Get<V>(x + i) - row.mean) * row.factor, d = Get<V>(d_out + i);
      const V inner = d * Get<V>(call.scale + i);
      level += inner;
      slope += inner * unit;
      Put<V>(sums + i, Get<V>(sums + i) + d * unit);
      Put<V>(d_bias + i, Get<V>(d_bias + i) + d);
    });
    const float constant = call.centered ? level.Mean(call.features) : 0;
    const float along = slope.Mean(call.features);
    ForRow(call.features, [&](auto zero, int64_t i) {
      using V = decltype(zero);
      const V unit = (Get<V>(x + i) - row.mean) * row.factor;
      const V inner = Get<V>(d_out + i) * Get<V>(call.scale + i);
      V result = (inner - constant - unit * along) * row.factor;
      if constexpr (kAdd) result += Get<V>(more + i);
      Put<V>(out + i, result);
    });
  }
}

void Forward(const Normalization& call, int64_t from, int64_t to, const float* bias, void* y) {
  (call.bf16 ? ForwardRows<uint16_t> : ForwardRows<float>)(call, from, to, bias, y);
}

template <typename Element>
void BackwardOf(const Normalization& call, int64_t from, int64_t to, const void* dy,
                const void* added, void* dx, float* sums) {
  const auto run = added == nullptr ? BackwardRows<Element, false> : BackwardRows<Element, true>;
  run(call, from, to, dy, added, dx, sums);
}

void Backward(const Normalization& call, int64_t from, int64_t to, const void* dy, const void* added,
              void* dx, float* sums) {
  (call.bf16 ? BackwardOf<uint16_t> : BackwardOf<float>)(call, from, to, dy, added, dx, sums);
}

}  // namespace

extern "C" const wafer::NormKernels WAFER_JOIN(WAFER_TARGET, _norm) = {Forward, Backward};
