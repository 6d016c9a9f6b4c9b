// Products of a few rows with a weight by output column; see decode.h. Compiled once per target.
//
// Sixty-four inputs of a few columns at a time: the kept values spread to the lanes that the mask
// names, 16 of them at once, or 32 where a processor spreads 16-bit values, then one multiply-add for
// each row of activations. Sums of several columns do not wait for each other. Their values lie one
// after another in memory, which is asked for line by line, ahead of them.
#include "decode.h"

#include <algorithm>
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
using wafer::kWord;
using wafer::Layout;
using wafer::Number;

constexpr int kParts = kWord / kLanes;
constexpr int kRegisters = WAFER_LANES == 16 ? 8 : 4;  // sums held at a time, where rows are fewer

// The mask of 64 inputs.
WAFER_INLINE uint64_t Word(const uint16_t* masks) {
  uint64_t word;
  std::memcpy(&word, masks, sizeof(word));
  return word;
}

// Asks for the memory that comes some time after [first, last), in `times` parts of a line at most.
class Ahead {
 public:
  template <typename Value>
  Ahead(const Value* first, const Value* last, int64_t times)
      : next_(reinterpret_cast<const char*>(first) + kDistance),
        step_((last - first) * int64_t{sizeof(Value)} / std::max<int64_t>(1, times) + 1) {}
  void Ask() {
    __builtin_prefetch(next_);
    next_ += step_;
  }

 private:
  static constexpr int64_t kDistance = 4096;
  const char* next_;
  int64_t step_;
};

// The first values spread to the lanes of `mask`, 0 elsewhere.
#if defined(WAFER_EXPANDS_16)
// Zeros for an instruction to write over. Zen 5 lets expand and compress wait for what their register
// held before, with zero masks, too; what it held is the result of the last one.
WAFER_INLINE __m512i Fresh() {
  __m512i zeros = _mm512_setzero_si512();
  asm("" : "+v"(zeros));
  return zeros;
}

WAFER_INLINE Floats Expand(Floats values, uint32_t mask) {
  asm("" : "+v"(values));
  return reinterpret_cast<Floats>(_mm512_mask_expand_ps(
      _mm512_castsi512_ps(Fresh()), static_cast<__mmask16>(mask), reinterpret_cast<__m512>(values)));
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

// Sums of a column and row that are added at last, where there is one row.
template <int kRows>
constexpr int kSplit = kRows == 1 ? 2 : 1;

// Adds the products of columns [n, n + kColumns).
template <typename Value, int kRows, int kColumns>
void Multiply(const Columns& w, const float* x, int64_t n, int64_t written, float* y,
              int64_t stride) {
  constexpr bool kScaled = sizeof(Value) == 1;
  const auto* values = static_cast<const Value*>(w.values);
  const float* const rows = kScaled ? x + kRows * kGroup : x;
  const Value* at[kColumns];
  const uint16_t* masks[kColumns];
  WAFER_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    at[c] = values + w.pointers[n + c];
    masks[c] = w.masks + (n + c) * w.groups;
  }
  Ahead ahead(at[0], at[0] + w.pointers[n + kColumns] - w.pointers[n],
              kColumns * w.groups * kGroup / kLanes);
  Floats sums[kColumns][kRows][kSplit<kRows>] = {};
  for (int64_t g = 0; g < w.groups; g += kWord / kGroup) {
    const float* inputs = rows + g * kRows * kGroup;
    WAFER_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const uint64_t word = Word(masks[c] + g);
      WAFER_UNROLL
      for (int part = 0; part < kParts; ++part) {
        const uint32_t own = word >> (part * kLanes) & kAll;
        ahead.Ask();
        const Floats weights = Expand(Load(at[c]), own);
        at[c] += __builtin_popcount(own);
        const int group = part * kLanes / kGroup, lane = part * kLanes % kGroup;
        WAFER_UNROLL
        for (int r = 0; r < kRows; ++r) {
          sums[c][r][part % kSplit<kRows>] += weights * Load(inputs + (group * kRows + r) * kGroup + lane);
        }
      }
    }
  }
  WAFER_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    WAFER_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Floats sum = sums[c][r][0];
      if constexpr (kSplit<kRows> == 2) sum += sums[c][r][1];
      if (r < written) y[r * stride + n + c] = kScaled ? SumOfLanes(sum) * (w.scales[n + c] * x[r]) : SumOfLanes(sum);
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
  WAFER_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    at[c] = static_cast<const uint16_t*>(w.values) + w.pointers[n + c];
    masks[c] = w.masks + (n + c) * w.groups;
  }
  Ahead ahead(at[0], at[0] + w.pointers[n + kColumns] - w.pointers[n], kColumns * w.groups / 2);
  Floats sums[kColumns][kRows][2] = {};
  for (int64_t g = 0; g < w.groups; g += kWord / kGroup) {
    const float* inputs = x + g * kRows * kGroup;
    WAFER_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const uint64_t word = Word(masks[c] + g);
      WAFER_UNROLL
      for (int half = 0; half < 2; ++half) {
        ahead.Ask();
        const uint32_t mask = static_cast<uint32_t>(word >> 32 * half);
        __m512i values = _mm512_loadu_si512(at[c]);
        asm("" : "+v"(values));
        const Words spread = reinterpret_cast<Words>(_mm512_mask_expand_epi16(Fresh(), mask, values));
        at[c] += __builtin_popcount(mask);
        const Floats even = reinterpret_cast<Floats>(spread << 16);
        const Floats odd = reinterpret_cast<Floats>(spread & 0xffff0000u);
        WAFER_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const float* own = inputs + 2 * (half * kRows + r) * kGroup;
          sums[c][r][0] += even * Load(own);
          sums[c][r][1] += odd * Load(own + kGroup);
        }
      }
    }
  }
  WAFER_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    WAFER_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r < written) y[r * stride + n + c] = SumOfLanes(sums[c][r][0] + sums[c][r][1]);
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

Layout LayoutOf(const Columns& w) {
  return w.number == Number::kBfloat16 && w.wide ? Layout::kPairs : Layout::kGroups;
}
#else
Layout LayoutOf(const Columns&) { return Layout::kGroups; }
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
  if (LayoutOf(w) == Layout::kPairs) return RowsPairs(w, x, rows, begin, end, written, y, stride);
  auto* run = w.number == Number::kInt8       ? Rows<int8_t>
              : w.number == Number::kBfloat16 ? Rows<uint16_t>
                                              : Rows<float>;
  run(w, x, rows, begin, end, written, y, stride);
}

// Of 8-bit values, where a processor spreads bytes and adds their products, 64 inputs at a time.
//
// An activation is an integer of 16 bits times the row's factor: its upper byte plus 128 and its
// lower one are unsigned, as vpdpbusd takes them. Sums of a lane are integers and exact; what the 128
// add is taken off at last, by the sum of the column's values, and lanes are added as floats.
namespace bytes {

#if defined(WAFER_EXPANDS_16)
#define WAFER_BYTES __attribute__((target("avx512vbmi2,avx512vnni")))

// Products of columns [n, n + kColumns) with rows [first, first + kRows) of `rows`.
template <bool kMasked, int kRows, int kColumns>
WAFER_BYTES void Multiply(const Columns& w, const float* x, int rows, int first, int64_t n,
                          int64_t written, float* y, int64_t stride) {
  const auto* values = static_cast<const int8_t*>(w.values);
  const auto* const lanes = reinterpret_cast<const uint8_t*>(x + rows * kGroup) + first * 2 * kWord;
  const int64_t inputs = w.groups * kGroup;
  const int8_t* at[kColumns];
  const uint16_t* masks[kColumns];
  WAFER_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    masks[c] = w.masks + (n + c) * w.groups;
    at[c] = values + (kMasked ? w.pointers[n + c] : (n + c) * inputs);
  }
  const int64_t kept = kMasked ? w.pointers[n + kColumns] - w.pointers[n] : kColumns * inputs;
  Ahead ahead(at[0], at[0] + kept, kColumns * w.groups / 4);
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i upper[kColumns][kRows], lower[kColumns][kRows], totals[kColumns];
  WAFER_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    totals[c] = _mm512_setzero_si512();
    WAFER_UNROLL
    for (int r = 0; r < kRows; ++r) upper[c][r] = lower[c][r] = totals[c];
  }
  for (int64_t g = 0; g < w.groups; g += kWord / kGroup) {
    const uint8_t* own = lanes + g / (kWord / kGroup) * rows * 2 * kWord;
    WAFER_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      ahead.Ask();
      __m512i weights = _mm512_loadu_si512(at[c]);
      if constexpr (kMasked) {
        uint64_t word;
        std::memcpy(&word, masks[c] + g, sizeof(word));
        asm("" : "+v"(weights));
        weights = _mm512_mask_expand_epi8(Fresh(), word, weights);
        at[c] += __builtin_popcountll(word);
      } else {
        at[c] += kWord;
      }
      totals[c] = _mm512_dpbusd_epi32(totals[c], ones, weights);
      WAFER_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* bytes = own + r * 2 * kWord;
        upper[c][r] = _mm512_dpbusd_epi32(upper[c][r], _mm512_loadu_si512(bytes), weights);
        lower[c][r] = _mm512_dpbusd_epi32(lower[c][r], _mm512_loadu_si512(bytes + kWord), weights);
      }
    }
  }
  WAFER_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    const __m512i total = _mm512_slli_epi32(totals[c], 7);
    WAFER_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512 high = _mm512_cvtepi32_ps(_mm512_sub_epi32(upper[c][r], total));
      const __m512 sums = _mm512_fmadd_ps(high, _mm512_set1_ps(256), _mm512_cvtepi32_ps(lower[c][r]));
      const float sum = _mm512_reduce_add_ps(sums) * (w.scales[n + c] * x[first + r]);
      if (first + r < written) y[(first + r) * stride + n + c] = sum;
    }
  }
}

// A dense column is one stream; see streams.cc.
template <bool kMasked, int kRows>
WAFER_BYTES void Range(const Columns& w, const float* x, int rows, int64_t begin, int64_t end,
                       int64_t written, float* y, int64_t stride) {
  constexpr int kTogether = kRows > 4 || !kMasked ? 1 : kRows > 2 ? 2 : 4;
  for (int first = 0; first < rows; first += kRows) {
    int64_t n = begin;
    for (; n + kTogether <= end; n += kTogether) {
      Multiply<kMasked, kRows, kTogether>(w, x, rows, first, n, written, y, stride);
    }
    for (; n < end; ++n) Multiply<kMasked, kRows, 1>(w, x, rows, first, n, written, y, stride);
  }
}

template <bool kMasked>
void Rows(const Columns& w, const float* x, int rows, int64_t begin, int64_t end, int64_t written,
          float* y, int64_t stride) {
  auto* run = rows == 1   ? Range<kMasked, 1>
              : rows == 2 ? Range<kMasked, 2>
              : rows == 4 ? Range<kMasked, 4>
                          : Range<kMasked, 8>;
  run(w, x, rows, begin, end, written, y, stride);
}

void Entry(const Columns& w, const float* x, int rows, int64_t begin, int64_t end, int64_t written,
           float* y, int64_t stride) {
  auto* run = w.masks != nullptr ? Rows<true> : Rows<false>;
  run(w, x, rows, begin, end, written, y, stride);
}

Layout LayoutOf(const Columns& w) { return w.wide ? Layout::kBytes : Layout::kGroups; }
#else
Layout LayoutOf(const Columns&) { return Layout::kGroups; }
void Entry(const Columns&, const float*, int, int64_t, int64_t, int64_t, float*, int64_t) {}
#endif

}  // namespace bytes

}  // namespace

extern "C" const wafer::DecodeKernels WAFER_JOIN(WAFER_TARGET, _decode) = {LayoutOf, Entry};
extern "C" const wafer::DecodeKernels WAFER_JOIN(WAFER_TARGET, _bytes) = {bytes::LayoutOf,
                                                                           bytes::Entry};
