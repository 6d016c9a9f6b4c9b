// Products of one tile of tokens with a compressed matrix; see tile.h. Compiled once per target
// with WAFER_TARGET (the name of the exported table) and WAFER_LANES (floats per vector).
//
// Written with the vector extensions of GCC and Clang, no intrinsics: the same source serves
// AVX-512, AVX2, SSE2 and NEON. Everything sits in an unnamed namespace, see tile.h.
#include "tile.h"

#include <cstring>

#include "vectors.h"

namespace {

using wafer::Ahead;
using wafer::Compressed;
using wafer::kRowBlock;
using wafer::Matrix;

constexpr int kVectors = 4;  // vectors per tile row: one broadcast weight feeds four products

typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef uint16_t LooseHalves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

// Lane l is a[l] where the bit is clear, else b[l]; and the same from the partner lane.
template <int kBit, int... kLane>
WAFER_INLINE Floats Own(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return WAFER_SHUFFLE(a, b, (kLane & kBit ? kLanes + kLane : kLane)...);
}
template <int kBit, int... kLane>
WAFER_INLINE Floats Partner(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return WAFER_SHUFFLE(a, b, (kLane & kBit ? kLanes : 0) + (kLane ^ kBit)...);
}
// Sums each of kLanes vectors over its lanes; lane l of the result is the sum of v[l].
template <int kBit = kLanes / 2>
WAFER_INLINE Floats SumEach(Floats (&v)[kLanes]) {
  for (int i = 0; i < kBit; ++i) {
    v[i] = Own<kBit>(v[i], v[i + kBit], AllLanes{}) + Partner<kBit>(v[i], v[i + kBit], AllLanes{});
  }
  if constexpr (kBit > 1) {
    return SumEach<kBit / 2>(v);
  } else {
    return v[0];
  }
}

WAFER_INLINE Floats FromBf16(Halves h) {
  return reinterpret_cast<Floats>(__builtin_convertvector(h, Words) << 16);
}

// Rounds to nearest, ties to even; a NaN stays one.
WAFER_INLINE Halves ToBf16(Floats f) {
  const Words bits = reinterpret_cast<Words>(f);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet = (bits >> 16) | 0x40;
  const Words is_nan = reinterpret_cast<Words>(f != f);
  return __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), Halves);
}

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

// One square: kLanes tokens from `first`, `columns` columns from `column`.
template <bool kBf16>
WAFER_INLINE void PackSquare(const Matrix& x, int64_t first, int tokens, int64_t column,
                             int columns, float* out, int stride) {
  Floats v[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const int64_t at = (first + i) * x.columns + column;
    if (i >= tokens) {
      v[i] = Floats{};
    } else if (columns == kLanes) {
      v[i] = LoadRow<kBf16>(x, at);
    } else {
      v[i] = LoadPart<kBf16>(x, at, columns);
    }
  }
  Transpose(v);
  for (int i = 0; i < columns; ++i) Store(out + i * stride, v[i]);
}

template <bool kBf16, int V>
void PackTile(const Matrix& x, int64_t first, int tokens, float* tile) {
  constexpr int kStride = V * kLanes;
  for (int v = 0; v < V; ++v) {
    const int left = tokens - v * kLanes;
    for (int64_t c = 0; c < x.columns; c += kLanes) {
      const int columns = x.columns - c < kLanes ? static_cast<int>(x.columns - c) : kLanes;
      float* out = tile + c * kStride + v * kLanes;
      if (left >= kLanes && columns == kLanes) {
        PackSquare<kBf16>(x, first + v * kLanes, kLanes, c, kLanes, out, kStride);
      } else {
        PackSquare<kBf16>(x, first + v * kLanes, left, c, columns, out, kStride);
      }
    }
  }
}

// Writes columns [row0, row0 + count) of y from sums[count][V * kLanes].
template <bool kBf16, int V>
void Unpack(const float* sums, int64_t first, int tokens, int64_t row0, int count,
            const Matrix& y) {
  constexpr int kStride = V * kLanes;
  for (int v = 0; v < V; ++v) {
    const int left = tokens - v * kLanes < kLanes ? tokens - v * kLanes : kLanes;
    for (int c = 0; c < count; c += kLanes) {
      const int columns = count - c < kLanes ? count - c : kLanes;
      Floats square[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        square[i] = i < columns ? Load(sums + (c + i) * kStride + v * kLanes) : Floats{};
      }
      Transpose(square);
      const int64_t at = (first + v * kLanes) * y.columns + row0 + c;
      if (left == kLanes && columns == kLanes) {
        for (int i = 0; i < kLanes; ++i) StoreRow<kBf16>(y, at + i * y.columns, square[i]);
      } else if (columns == kLanes) {
        for (int i = 0; i < left; ++i) StoreRow<kBf16>(y, at + i * y.columns, square[i]);
      } else {
        for (int i = 0; i < left; ++i) {
          StorePart<kBf16>(y, at + i * y.columns, columns, square[i]);
        }
      }
    }
  }
}

// Asks for the lines of y that this block of columns will be written to, a few at a time, while its
// sums are computed: the tokens lie in different pages, and each miss would stall the stores.
template <bool kBf16, int kTokens>
WAFER_INLINE void PrefetchOutput(const Matrix& y, int64_t first, int tokens, int64_t row0,
                                 int count, int i) {
  constexpr int kBytes = kBf16 ? 2 : 4, kLine = 64;
  constexpr int kStep = (kTokens + kRowBlock - 1) / kRowBlock;
  for (int t = i * kStep; t < (i + 1) * kStep && t < tokens; ++t) {
    const char* at =
        static_cast<const char*>(y.data) + ((first + t) * y.columns + row0) * kBytes;
    for (int b = 0; b < count * kBytes; b += kLine) __builtin_prefetch(at + b, 1);
  }
}

// Asks for one share of the tokens that are packed next, into the second-level cache.
WAFER_INLINE void PrefetchAhead(const Ahead& ahead, int64_t share, int64_t shares) {
  const int64_t row_bytes = ahead.x.columns * (ahead.x.bf16 ? 2 : 4);
  const int64_t total = ahead.tokens * row_bytes, end = total * (share + 1) / shares;
  const char* at = static_cast<const char*>(ahead.x.data) + ahead.first * row_bytes;
  for (int64_t b = total * share / shares / 64 * 64; b < end; b += 64) {
    __builtin_prefetch(at + b, 0, 2);
  }
}

struct Range {
  const int32_t* begin;
  const int32_t* end;
};
WAFER_INLINE Range BlockRange(const Compressed& w, int64_t block) {
  if (w.starts == nullptr) return {w.row_pointers, w.row_pointers + 1};
  return {w.starts + block * w.rows, w.starts + (block + 1) * w.rows};
}

template <bool kBf16, int V, typename Index>
void Multiply(const Compressed& w, const float* values, const float* tile, int64_t first,
              int tokens, int64_t row0, int64_t row1, float* scratch, const Matrix& y,
              const Ahead& ahead) {
  constexpr int kStride = V * kLanes;
  const Index* indices = static_cast<const Index*>(w.indices);
  for (int64_t r0 = row0; r0 < row1; r0 += kRowBlock) {
    const int count = row1 - r0 < kRowBlock ? static_cast<int>(row1 - r0) : kRowBlock;
    for (int64_t block = 0; block < w.blocks; ++block) {
      const Range range = BlockRange(w, block);
      for (int i = 0; i < count; ++i) {
        if (block == 0) {
          PrefetchOutput<kBf16, kStride>(y, first, tokens, r0, count, i);
          PrefetchAhead(ahead, r0 + i - row0, row1 - row0);
        }
        float* out = scratch + i * kStride;
        Floats sum[V];
        for (int v = 0; v < V; ++v) sum[v] = block == 0 ? Floats{} : Load(out + v * kLanes);
        const int32_t end = range.end[r0 + i];
#pragma GCC unroll 2
        for (int32_t j = range.begin[r0 + i]; j < end; ++j) {
          const Floats weight = Splat(values[j], AllLanes{});
          const float* row = tile + static_cast<size_t>(indices[j]) * kStride;
          for (int v = 0; v < V; ++v) sum[v] += weight * Load(row + v * kLanes);
        }
        for (int v = 0; v < V; ++v) Store(out + v * kLanes, sum[v]);
      }
    }
    Unpack<kBf16, V>(scratch, first, tokens, r0, count, y);
  }
}

// Up to kCount entries of one row against that row of dy, the rest of the lanes staying zero.
template <int V, int kCount, typename Index>
WAFER_INLINE void DotSome(const float* tile, const Floats (&dy)[V], const Index* indices, int count,
                          float* out) {
  Floats sum[kLanes];
#pragma GCC unroll 16
  for (int u = 0; u < kLanes; ++u) {
    sum[u] = Floats{};
    if (u >= kCount) continue;
    const size_t index = u < count ? indices[u] : 0;
    const float* row = tile + index * (V * kLanes);
    for (int v = 0; v < V; ++v) sum[u] += dy[v] * Load(row + v * kLanes);
  }
  Floats total = SumEach(sum);
  if (count < kLanes) {  // lanes past the row belong to the next one
    const Words keep = reinterpret_cast<Words>(LaneNumbers(AllLanes{}) < count);
    total = reinterpret_cast<Floats>(reinterpret_cast<Words>(total) & keep);
  }
  LooseFloats* to = reinterpret_cast<LooseFloats*>(out);
  *to = *to + total;
}

template <int V, typename Index>
WAFER_INLINE void DotRow(const float* x_tile, const float* dy_row, const Index* indices, int count,
                         float* out) {
  constexpr int kQuarter = kLanes / 4;
  Floats dy[V];
  for (int v = 0; v < V; ++v) dy[v] = Load(dy_row + v * kLanes);
  for (; count >= kLanes; count -= kLanes, indices += kLanes, out += kLanes) {
    DotSome<V, kLanes>(x_tile, dy, indices, kLanes, out);
  }
  if (count > 3 * kQuarter) {
    DotSome<V, kLanes>(x_tile, dy, indices, count, out);
  } else if (count > 2 * kQuarter) {
    DotSome<V, 3 * kQuarter>(x_tile, dy, indices, count, out);
  } else if (count > kQuarter) {
    DotSome<V, 2 * kQuarter>(x_tile, dy, indices, count, out);
  } else if (count > 0) {
    DotSome<V, kQuarter>(x_tile, dy, indices, count, out);
  }
}

template <int V, typename Index>
void Dot(const Compressed& w, const float* x_tile, const float* dy_tile, float* dvalues,
         const Ahead& ahead) {
  const Index* indices = static_cast<const Index*>(w.indices);
  for (int64_t r0 = 0; r0 < w.rows; r0 += kRowBlock) {
    const int64_t r1 = w.rows - r0 < kRowBlock ? w.rows : r0 + kRowBlock;
    for (int64_t block = 0; block < w.blocks; ++block) {
      const Range range = BlockRange(w, block);
      for (int64_t r = r0; r < r1; ++r) {
        if (block == 0) PrefetchAhead(ahead, r, w.rows);
        const int32_t begin = range.begin[r];
        DotRow<V>(x_tile, dy_tile + r * V * kLanes, indices + begin, range.end[r] - begin,
                  dvalues + begin);
      }
    }
  }
}

// A tail of tokens takes a narrower tile; the caller only knows tokens.
WAFER_INLINE int VectorsFor(int tokens) {
  return tokens <= kLanes ? 1 : tokens <= 2 * kLanes ? 2 : kVectors;
}

template <int V>
void PackWidth(const Matrix& x, int64_t first, int tokens, float* tile) {
  x.bf16 ? PackTile<true, V>(x, first, tokens, tile) : PackTile<false, V>(x, first, tokens, tile);
}

void PackEntry(const Matrix& x, int64_t first, int tokens, float* tile) {
  switch (VectorsFor(tokens)) {
    case 1: return PackWidth<1>(x, first, tokens, tile);
    case 2: return PackWidth<2>(x, first, tokens, tile);
    default: return PackWidth<kVectors>(x, first, tokens, tile);
  }
}

template <int V>
void MultiplyWidth(const Compressed& w, const float* values, const float* tile, int64_t first,
                   int tokens, int64_t row0, int64_t row1, float* scratch, const Matrix& y,
              const Ahead& ahead) {
  auto* fn = w.wide ? (y.bf16 ? Multiply<true, V, int32_t> : Multiply<false, V, int32_t>)
                    : (y.bf16 ? Multiply<true, V, uint16_t> : Multiply<false, V, uint16_t>);
  fn(w, values, tile, first, tokens, row0, row1, scratch, y, ahead);
}

void MultiplyEntry(const Compressed& w, const float* values, const float* tile, int64_t first,
                   int tokens, int64_t row0, int64_t row1, float* scratch, const Matrix& y,
              const Ahead& ahead) {
  switch (VectorsFor(tokens)) {
    case 1: return MultiplyWidth<1>(w, values, tile, first, tokens, row0, row1, scratch, y, ahead);
    case 2: return MultiplyWidth<2>(w, values, tile, first, tokens, row0, row1, scratch, y, ahead);
    default:
      return MultiplyWidth<kVectors>(w, values, tile, first, tokens, row0, row1, scratch, y, ahead);
  }
}

template <int V>
void DotWidth(const Compressed& w, const float* x_tile, const float* dy_tile, float* dvalues,
              const Ahead& ahead) {
  w.wide ? Dot<V, int32_t>(w, x_tile, dy_tile, dvalues, ahead)
         : Dot<V, uint16_t>(w, x_tile, dy_tile, dvalues, ahead);
}

void DotEntry(const Compressed& w, const float* x_tile, const float* dy_tile, int tokens,
              float* dvalues, const Ahead& ahead) {
  switch (VectorsFor(tokens)) {
    case 1: return DotWidth<1>(w, x_tile, dy_tile, dvalues, ahead);
    case 2: return DotWidth<2>(w, x_tile, dy_tile, dvalues, ahead);
    default: return DotWidth<kVectors>(w, x_tile, dy_tile, dvalues, ahead);
  }
}


}  // namespace

extern "C" {
extern const wafer::TileKernels WAFER_TARGET;
const wafer::TileKernels WAFER_TARGET = {kVectors * kLanes, kLanes, PackEntry, MultiplyEntry,
                                         DotEntry};
}
