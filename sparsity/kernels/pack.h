// Tokens into tiles and sums out of them, for code that is compiled once per target; see tile.h.
// Everything sits in an unnamed namespace, as in vectors.h.
#ifndef WAFER_SPARSITY_PACK_H_
#define WAFER_SPARSITY_PACK_H_

#include <cstring>

#include "tile.h"
#include "vectors.h"

namespace {

using wafer::Ahead;
using wafer::kBlock;
using wafer::kPanel;
using wafer::Matrix;

template <bool kBf16>
WAFER_INLINE Floats LoadRow(const Matrix& x, int64_t at) {
  if constexpr (kBf16) {
    return FromBf16(*reinterpret_cast<const LooseHalves*>(static_cast<uint16_t*>(x.data) + at));
  } else {
    return *reinterpret_cast<const LooseFloats*>(static_cast<float*>(x.data) + at);
  }
}

template <bool kBf16>
WAFER_INLINE void StoreRow(const Matrix& y, int64_t at, Floats v) {
  if constexpr (kBf16) {
    *reinterpret_cast<LooseHalves*>(static_cast<uint16_t*>(y.data) + at) = ToBf16(v);
  } else {
    *reinterpret_cast<LooseFloats*>(static_cast<float*>(y.data) + at) = v;
  }
}

// Part of a row of fewer than kLanes columns.
template <bool kBf16>
Floats LoadPart(const Matrix& x, int64_t at, int count) {
  const int bytes = kBf16 ? 2 : 4;
  alignas(64) unsigned char part[4 * kLanes] = {};
  std::memcpy(part, static_cast<const char*>(x.data) + at * bytes, count * bytes);
  return LoadRow<kBf16>(Matrix{part, 0, kBf16}, 0);
}
template <bool kBf16>
void StorePart(const Matrix& y, int64_t at, int count, Floats v) {
  const int bytes = kBf16 ? 2 : 4;
  alignas(64) unsigned char part[4 * kLanes];
  StoreRow<kBf16>(Matrix{part, 0, kBf16}, 0, v);
  std::memcpy(static_cast<char*>(y.data) + at * bytes, part, count * bytes);
}

// kLanes columns from `column` of kLanes tokens from `first`: lane t of out[c] is token t. Adds the
// tokens of each column to `totals`.
template <bool kBf16>
WAFER_INLINE void LoadSquare(const Matrix& x, int64_t first, int tokens, int64_t column,
                             int columns, float* totals, Floats (&out)[kLanes]) {
  WAFER_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    const int64_t at = (first + i) * x.columns + column;
    if (i >= tokens) {
      out[i] = Floats{};
    } else if (columns == kLanes) {
      out[i] = LoadRow<kBf16>(x, at);
    } else {
      out[i] = LoadPart<kBf16>(x, at, columns);
    }
  }
  if (totals != nullptr) {
    Floats total{};
    WAFER_UNROLL
    for (int i = 0; i < kLanes; ++i) total += out[i];
    if (columns == kLanes) {
      Store(totals + column, Load(totals + column) + total);
    } else {
      for (int i = 0; i < columns; ++i) totals[column + i] += total[i];
    }
  }
  Transpose(out);
}

// Floats of a tile's row with V vectors of tokens.
template <int V, bool kHalves>
constexpr int RowFloats() {
  return kHalves ? V / 2 * kLanes : V * kLanes;
}

WAFER_INLINE int64_t TileRow(int64_t column) { return column + column / kBlock; }

template <bool kBf16, bool kHalves>
WAFER_INLINE void PackSquare(const Matrix& x, int64_t first, int tokens, int64_t column, int columns,
                             float* totals, float* out, int stride) {
  Floats low[kLanes];
  LoadSquare<kBf16>(x, first, tokens, column, columns, totals, low);
  if constexpr (kHalves) {
    Floats high[kLanes];
    LoadSquare<kBf16>(x, first + kLanes, tokens - kLanes, column, columns, totals, high);
    WAFER_UNROLL
    for (int i = 0; i < kLanes; ++i) low[i] = AsFloats((AsWords(low[i]) >> 16) | AsWords(high[i]));
  }
  for (int i = 0; i < columns; ++i) Store(out + i * stride, low[i]);
}

template <bool kBf16, int V, bool kHalves>
void PackTile(const Matrix& x, int64_t first, int tokens, float* totals, float* tile) {
  constexpr int kStride = RowFloats<V, kHalves>(), kStep = kHalves ? 2 : 1;
  for (int v = 0; v < V; v += kStep) {
    const int left = tokens - v * kLanes;
    for (int64_t c = 0; c < x.columns; c += kLanes) {
      const int columns = x.columns - c < kLanes ? static_cast<int>(x.columns - c) : kLanes;
      float* out = tile + TileRow(c) * kStride + v / kStep * kLanes;
      if (left >= kStep * kLanes && columns == kLanes) {
        PackSquare<kBf16, kHalves>(x, first + v * kLanes, kStep * kLanes, c, kLanes, totals, out,
                                   kStride);
      } else {
        PackSquare<kBf16, kHalves>(x, first + v * kLanes, left, c, columns, totals, out, kStride);
      }
    }
  }
  for (int64_t c = 0; c == 0 || c < x.columns; c += kBlock) {
    float* zeros = tile + (TileRow(c) + kBlock) * kStride;
    for (int i = 0; i < kStride; i += kLanes) Store(zeros + i, Floats{});
  }
}

template <bool kBf16>
void PackPanels(const Matrix& x, int64_t first, int tokens, int width, float* tile) {
  for (int64_t c = 0; c < x.columns; c += kLanes) {
    float* panel = tile + c / kPanel * kPanel * width + c % kPanel;
    for (int t = 0; t < tokens; ++t) {
      Store(panel + t * kPanel, LoadRow<kBf16>(x, (first + t) * x.columns + c));
    }
  }
}

// What becomes of a number that is written and read again.
template <bool kBf16>
WAFER_INLINE Floats Rounded(Floats v) {
  return kBf16 ? FromBf16(ToBf16(v)) : v;
}

// Writes at most kLanes columns from `column` of at most kLanes tokens from `first` of y, from a vector of
// each row of sums[columns][V * kLanes] and, where it is not null, the bias.
template <bool kBf16, int V>
WAFER_INLINE void UnpackSquare(const float* sums, const float* bias, int64_t first, int tokens,
                               int64_t column, int columns, const Matrix& y) {
  Floats square[kLanes];
  WAFER_UNROLL
  for (int i = 0; i < kLanes; ++i) square[i] = i < columns ? Load(sums + i * V * kLanes) : Floats{};
  Transpose(square);
  if (bias != nullptr) {
    const Matrix all{const_cast<float*>(bias), 0, false};
    const Floats line = Rounded<kBf16>(columns == kLanes ? LoadRow<false>(all, column)
                                                         : LoadPart<false>(all, column, columns));
    WAFER_UNROLL
    for (int i = 0; i < kLanes; ++i) square[i] = Rounded<kBf16>(square[i]) + line;
  }
  int64_t at = first * y.columns + column;
  WAFER_UNROLL
  for (int i = 0; i < kLanes; ++i, at += y.columns) {
    if (i >= tokens) break;
    if (columns == kLanes) {
      StoreRow<kBf16>(y, at, square[i]);
    } else {
      StorePart<kBf16>(y, at, columns, square[i]);
    }
  }
}

// Writes columns [row0, row0 + count) of y from sums[count][V * kLanes] and, where it is not null,
// the bias.
template <bool kBf16, int V>
void Unpack(const float* sums, const float* bias, int64_t first, int tokens, int64_t row0, int count,
            const Matrix y) {
  for (int v = 0; v < V; ++v) {
    const int64_t token = first + v * kLanes;
    const int left = tokens - v * kLanes;
    if (left <= 0) return;
    for (int c = 0; c < count; c += kLanes) {
      const float* from = sums + (c * V + v) * kLanes;
      const int columns = count - c < kLanes ? count - c : kLanes;
      if (left < kLanes || columns < kLanes) {
        UnpackSquare<kBf16, V>(from, bias, token, left, row0 + c, columns, y);
      } else if (bias == nullptr) {
        UnpackSquare<kBf16, V>(from, nullptr, token, kLanes, row0 + c, kLanes, y);
      } else {
        UnpackSquare<kBf16, V>(from, bias, token, kLanes, row0 + c, kLanes, y);
      }
    }
  }
}

// Asks for lines of memory a share at a time, while sums are computed: tokens lie in different
// pages, and each miss would stall what needs them.
class Prefetch {
 public:
  // Columns [column, column + count) of `tokens` tokens, in `shares` shares of a row or, with fewer
  // shares than tokens, of the first ones.
  Prefetch(const Matrix& x, int64_t first, int tokens, int64_t column, int64_t count, int64_t shares)
      : row_bytes_(x.columns * (x.bf16 ? 2 : 4)),
        span_(count * (x.bf16 ? 2 : 4)),
        rows_(tokens),
        at_(static_cast<const char*>(x.data) + first * row_bytes_ + column * (x.bf16 ? 2 : 4)) {
    const int64_t parts = tokens > 0 && tokens < shares ? shares / tokens : 1;
    share_ = (span_ + 64 * parts - 1) / (64 * parts) * 64;
  }

  inline __attribute__((always_inline)) void Next() {
    if (rows_ == 0) return;
    const int64_t end = inside_ + share_ < span_ ? inside_ + share_ : span_;
    for (; inside_ < end; inside_ += 64) __builtin_prefetch(at_ + inside_, 0, 2);
    if (end < span_) return;
    inside_ = 0;
    at_ += row_bytes_;
    --rows_;
  }

 private:
  int64_t row_bytes_, span_, share_, rows_, inside_ = 0;
  const char* at_;
};

}  // namespace

#endif  // WAFER_SPARSITY_PACK_H_
