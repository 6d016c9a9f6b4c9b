// Products of a few rows with a weight by output column; see decode.h. Compiled once per target.
//
// Sixteen inputs at a time, or 32 where a processor spreads 16-bit values: the kept values spread
// to the lanes that the mask names, then one multiply-add for each row of activations. A few
// columns go together, so that their sums and pointers do not wait for each other, and each asks
// for the memory that the next few will need.
#include "decode.h"

#include <cstring>

#include "vectors.h"

// Intrinsics have vectors of one size: flags such as -march=native offer them for every target.
#if defined(__AVX512F__) && WAFER_LANES == 16
#define WAFER_EXPANDS_16
#include <immintrin.h>
#elif defined(__AVX2__) && WAFER_LANES == 8
#define WAFER_PERMUTES_8
#include <immintrin.h>
#endif

namespace {

using wafer::Columns;
using wafer::kGroup;

constexpr int kParts = kGroup / kLanes;
constexpr int kRegisters = WAFER_LANES == 16 ? 8 : 4;  // sums held at a time, where rows are fewer

typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef uint16_t LooseHalves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

WAFER_INLINE Floats LoadValues(const float* p) { return Load(p); }
WAFER_INLINE Floats LoadValues(const uint16_t* p) {
  const Halves halves = *reinterpret_cast<const LooseHalves*>(p);
  return reinterpret_cast<Floats>(__builtin_convertvector(halves, Words) << 16);
}

template <int kBit, int... kLane>
WAFER_INLINE Floats Partners(Floats v, std::integer_sequence<int, kLane...>) {
  return WAFER_SHUFFLE(v, v, (kLane ^ kBit)...);
}
template <int kBit = kLanes / 2>
WAFER_INLINE float Sum(Floats v) {
  v += Partners<kBit>(v, AllLanes{});
  if constexpr (kBit > 1) {
    return Sum<kBit / 2>(v);
  } else {
    return v[0];
  }
}

// The first values spread to the lanes of `mask`, 0 elsewhere.
#if defined(WAFER_EXPANDS_16)
WAFER_INLINE Floats Expand(Floats values, uint32_t mask) {
  return reinterpret_cast<Floats>(
      _mm512_maskz_expand_ps(static_cast<__mmask16>(mask), reinterpret_cast<__m512>(values)));
}
#elif defined(WAFER_PERMUTES_8)
// For each mask of 8 lanes, which value goes to each lane, or -1: a sign that clears the lane.
struct Places {
  int32_t of[256][8];
  constexpr Places() : of() {
    for (int mask = 0; mask < 256; ++mask) {
      int next = 0;
      for (int lane = 0; lane < 8; ++lane) of[mask][lane] = mask >> lane & 1 ? next++ : -1;
    }
  }
};
alignas(64) constexpr Places kPlaces;
WAFER_INLINE Floats Expand(Floats values, uint32_t mask) {
  const __m256i places = _mm256_load_si256(reinterpret_cast<const __m256i*>(kPlaces.of[mask]));
  const __m256 spread = _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(values), places);
  return reinterpret_cast<Floats>(
      _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_srai_epi32(places, 31)), spread));
}
#else
WAFER_INLINE Floats Expand(Floats values, uint32_t mask) {
  Floats spread{};
  int next = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) spread[lane] = values[next++];
  }
  return spread;
}
#endif

constexpr uint32_t kAll = (1u << kLanes) - 1;

// Adds the products of columns [n, n + kColumns).
template <typename Value, int kRows, int kColumns>
void Multiply(const Columns& w, const float* x, int64_t n, int64_t written, float* y,
              int64_t stride) {
  const auto* values = static_cast<const Value*>(w.values);
  const Value* at[kColumns];
  const uint16_t* masks[kColumns];
  for (int c = 0; c < kColumns; ++c) {
    at[c] = values + w.pointers[n + c];
    masks[c] = w.masks + (n + c) * w.groups;
  }
  const int64_t ahead = int64_t{w.pointers[n + kColumns]} - w.pointers[n];
  Floats sums[kColumns][kRows] = {};
  for (int64_t g = 0; g < w.groups; ++g) {
    const float* inputs = x + g * kRows * kGroup;
    for (int c = 0; c < kColumns; ++c) {
      __builtin_prefetch(at[c] + ahead);
      const uint32_t mask = masks[c][g];
      for (int part = 0; part < kParts; ++part) {
        const uint32_t own = mask >> (part * kLanes) & kAll;
        const Floats weights = Expand(LoadValues(at[c]), own);
        at[c] += __builtin_popcount(own);
        for (int r = 0; r < kRows; ++r) {
          sums[c][r] += weights * Load(inputs + r * kGroup + part * kLanes);
        }
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int r = 0; r < kRows; ++r) {
      if (r < written) y[r * stride + n + c] = Sum(sums[c][r]);
    }
  }
}

// Columns that go together, so that sums fill the registers.
template <int kRows>
constexpr int kTogether = kRows >= kRegisters ? 1 : kRows * 4 <= kRegisters ? 4 : 2;

#if defined(WAFER_EXPANDS_16)
// bfloat16 values, 32 inputs at a time: spread as 16-bit lanes, they are the upper halves of the
// floats for odd inputs where they stand, and of those for even ones after a shift.
template <int kRows, int kColumns>
__attribute__((target("avx512vbmi2"))) void MultiplyPairs(const Columns& w, const float* x,
                                                           int64_t n, int64_t written, float* y,
                                                           int64_t stride) {
  const uint16_t* at[kColumns];
  const uint16_t* masks[kColumns];
  for (int c = 0; c < kColumns; ++c) {
    at[c] = static_cast<const uint16_t*>(w.values) + w.pointers[n + c];
    masks[c] = w.masks + (n + c) * w.groups;
  }
  const int64_t ahead = int64_t{w.pointers[n + kColumns]} - w.pointers[n];
  Floats sums[kColumns][kRows] = {};
  for (int64_t g = 0; g < w.groups; g += 2) {
    const float* inputs = x + g * kRows * kGroup;
    for (int c = 0; c < kColumns; ++c) {
      __builtin_prefetch(at[c] + ahead);
      uint32_t mask = masks[c][g];
      if (g + 1 < w.groups) std::memcpy(&mask, masks[c] + g, sizeof(mask));
      const Words spread = reinterpret_cast<Words>(
          _mm512_maskz_expand_epi16(mask, _mm512_loadu_si512(at[c])));
      at[c] += __builtin_popcount(mask);
      const Floats even = reinterpret_cast<Floats>(spread << 16);
      const Floats odd = reinterpret_cast<Floats>(spread & 0xffff0000u);
      for (int r = 0; r < kRows; ++r) {
        sums[c][r] += even * Load(inputs + 2 * r * kGroup);
        sums[c][r] += odd * Load(inputs + (2 * r + 1) * kGroup);
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int r = 0; r < kRows; ++r) {
      if (r < written) y[r * stride + n + c] = Sum(sums[c][r]);
    }
  }
}

template <int kRows>
void RangePairs(const Columns& w, const float* x, int64_t begin, int64_t end, int64_t written,
                float* y, int64_t stride) {
  int64_t n = begin;
  for (; n + kTogether<kRows> <= end; n += kTogether<kRows>) {
    MultiplyPairs<kRows, kTogether<kRows>>(w, x, n, written, y, stride);
  }
  for (; n < end; ++n) MultiplyPairs<kRows, 1>(w, x, n, written, y, stride);
}

void RowsPairs(const Columns& w, const float* x, int rows, int64_t begin, int64_t end,
               int64_t written, float* y, int64_t stride) {
  switch (rows) {
    case 1: return RangePairs<1>(w, x, begin, end, written, y, stride);
    case 2: return RangePairs<2>(w, x, begin, end, written, y, stride);
    case 4: return RangePairs<4>(w, x, begin, end, written, y, stride);
    case 8: return RangePairs<8>(w, x, begin, end, written, y, stride);
    default: return RangePairs<16>(w, x, begin, end, written, y, stride);
  }
}

bool ByPairs(const Columns& w) { return w.bf16 && w.vbmi2; }
#else
bool ByPairs(const Columns&) { return false; }
void RowsPairs(const Columns&, const float*, int, int64_t, int64_t, int64_t, float*, int64_t) {}
#endif

template <typename Value, int kRows>
void Range(const Columns& w, const float* x, int64_t begin, int64_t end, int64_t written, float* y,
           int64_t stride) {
  int64_t n = begin;
  for (; n + kTogether<kRows> <= end; n += kTogether<kRows>) {
    Multiply<Value, kRows, kTogether<kRows>>(w, x, n, written, y, stride);
  }
  for (; n < end; ++n) Multiply<Value, kRows, 1>(w, x, n, written, y, stride);
}

template <typename Value>
void Rows(const Columns& w, const float* x, int rows, int64_t begin, int64_t end, int64_t written,
          float* y, int64_t stride) {
  switch (rows) {
    case 1: return Range<Value, 1>(w, x, begin, end, written, y, stride);
    case 2: return Range<Value, 2>(w, x, begin, end, written, y, stride);
    case 4: return Range<Value, 4>(w, x, begin, end, written, y, stride);
    case 8: return Range<Value, 8>(w, x, begin, end, written, y, stride);
    default: return Range<Value, 16>(w, x, begin, end, written, y, stride);
  }
}

void Entry(const Columns& w, const float* x, int rows, int64_t begin, int64_t end, int64_t written,
           float* y, int64_t stride) {
  if (ByPairs(w)) return RowsPairs(w, x, rows, begin, end, written, y, stride);
  auto* run = w.bf16 ? Rows<uint16_t> : Rows<float>;
  run(w, x, rows, begin, end, written, y, stride);
}

}  // namespace

extern "C" const wafer::DecodeKernels WAFER_JOIN(WAFER_TARGET, _decode) = {ByPairs, Entry};
