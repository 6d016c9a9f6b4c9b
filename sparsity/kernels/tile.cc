// Products of one tile of tokens along a walk; see tile.h. Compiled once per target with
// WAFER_TARGET (the name of the exported table) and WAFER_LANES (floats per vector).
//
// Written with the vector extensions of GCC and Clang, no intrinsics: the same source serves
// AVX-512, AVX2, SSE2 and NEON. Everything sits in an unnamed namespace, see vectors.h.
#include "tile.h"

#include "pack.h"
#include "vectors.h"

namespace {

using wafer::Factor;
using wafer::Form;
using wafer::kAlike;
using wafer::kGroup;
using wafer::kPanels;
using wafer::kRowBits;
using wafer::kSlice;
using wafer::Slice;
using wafer::Walk;

// Vectors per row of a tile, each a product for one broadcast weight, and outputs of a slice that are
// walked together: as many as there are registers for, 32 with AVX-512 and else 16.
constexpr int kVectors = kLanes >= 16 ? 4 : 6;
constexpr int kTogether = kLanes >= 16 ? kSlice : 2;

// Lane l is lane l of a or, where its bit is set, of b, and its partner lane's added.
template <int kBit, int... kLane>
WAFER_INLINE Floats Fold(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return WAFER_SHUFFLE(a, b, (kLane & kBit ? kLanes + kLane : kLane)...) +
         WAFER_SHUFFLE(a, b, (kLane & kBit ? kLanes : 0) + (kLane ^ kBit)...);
}
// Sums lanes that differ in bits from kFirst / 2 down to kLast: one vector of kFirst / kLast.
template <int kFirst, int kLast>
WAFER_INLINE Floats FoldAll(Floats* v) {
  if constexpr (kFirst <= kLast) {
    return v[0];
  } else {
    constexpr int kBit = kFirst / 2, kHalf = kFirst / kLast / 2;
    for (int i = 0; i < kHalf; ++i) v[i] = Fold<kBit>(v[i], v[i + kHalf], AllLanes{});
    return FoldAll<kBit, kLast>(v);
  }
}

// Lanes of a and b in turn: of their first halves (kPart 0) or their second ones; and the way back.
template <int kPart, int... kLane>
WAFER_INLINE Floats Interleave(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return WAFER_SHUFFLE(a, b, (kLane % 2 * kLanes + kLane / 2 + kPart * kLanes / 2)...);
}
template <int kFirst, int... kLane>
WAFER_INLINE Floats EverySecond(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return WAFER_SHUFFLE(a, b, (2 * kLane + kFirst)...);
}

// Four vectors, one for each output of a slice, as slots: lane j of v[c] becomes slot 4 j + c.
WAFER_INLINE void ToSlots(Floats (&v)[kSlice]) {
  const AllLanes lanes;
  const Floats even[2] = {Interleave<0>(v[0], v[2], lanes), Interleave<1>(v[0], v[2], lanes)};
  const Floats odd[2] = {Interleave<0>(v[1], v[3], lanes), Interleave<1>(v[1], v[3], lanes)};
  for (int i = 0; i < 2; ++i) {
    v[2 * i] = Interleave<0>(even[i], odd[i], lanes);
    v[2 * i + 1] = Interleave<1>(even[i], odd[i], lanes);
  }
}
WAFER_INLINE void FromSlots(Floats (&v)[kSlice]) {
  const AllLanes lanes;
  const Floats even[2] = {EverySecond<0>(v[0], v[1], lanes), EverySecond<0>(v[2], v[3], lanes)};
  const Floats odd[2] = {EverySecond<1>(v[0], v[1], lanes), EverySecond<1>(v[2], v[3], lanes)};
  v[0] = EverySecond<0>(even[0], even[1], lanes);
  v[1] = EverySecond<0>(odd[0], odd[1], lanes);
  v[2] = EverySecond<1>(even[0], even[1], lanes);
  v[3] = EverySecond<1>(odd[0], odd[1], lanes);
}

// The slices of one segment. Whole vectors are moved where neither what is read nor what is written
// behind the last value matters: later slices write over it.
void FillSlots(const Slice* slice, const Slice* end, int32_t* starts, const float* values,
               int64_t nnz, float* out) {
  const int64_t last = end[-1].slots + kSlice * end[-1].counts[0];
  for (; slice < end && slice->counts[0] > 0; ++slice) {
    const int length = slice->counts[0], moved = (length + kLanes - 1) / kLanes * kLanes;
    float* to = out + slice->slots;
    bool whole = slice->slots + kSlice * moved <= last;
    const float* from[kSlice];
    for (int c = 0; c < kSlice; ++c) {
      int32_t& start = starts[slice->rows[c] & kRowBits];
      from[c] = values + start;
      whole = whole && start + moved <= nnz;
      start += slice->counts[c];
    }
    if (whole) {
      for (int j = 0; j < length; j += kLanes) {
        Floats v[kSlice];
        for (int c = 0; c < kSlice; ++c) v[c] = Load(from[c] + j);
        ToSlots(v);
        for (int i = 0; i < kSlice; ++i) Store(to + kSlice * j + i * kLanes, v[i]);
      }
    } else {
      for (int c = 0; c < kSlice; ++c) {
        for (int j = 0; j < slice->counts[c]; ++j) to[kSlice * j + c] = from[c][j];
      }
    }
    if (slice->counts[kSlice - 1] == length) continue;
    for (int c = 1; c < kSlice; ++c) {  // -0 changes no sum
      for (int j = slice->counts[c]; j < length; ++j) to[kSlice * j + c] = -0.0f;
    }
  }
}

void SumSlots(const Slice* slice, const Slice* end, int32_t* starts, const float* slots,
              int64_t stride, int64_t parts, float* values) {
  alignas(64) float rows[kSlice][kBlock + kLanes];
  for (; slice < end && slice->counts[0] > 0; ++slice) {
    const float* from = slots + slice->slots;
    for (int j = 0; j < slice->counts[0]; j += kLanes) {
      Floats v[kSlice];
      for (int i = 0; i < kSlice; ++i) {
        const float* at = from + kSlice * j + i * kLanes;
        v[i] = Load(at);
        for (int64_t part = 1; part < parts; ++part) v[i] += Load(at + part * stride);
      }
      FromSlots(v);
      for (int c = 0; c < kSlice; ++c) Store(rows[c] + j, v[c]);
    }
    for (int c = 0; c < kSlice; ++c) {
      int32_t& start = starts[slice->rows[c] & kRowBits];
      std::memcpy(values + start, rows[c], sizeof(float) * slice->counts[c]);
      start += slice->counts[c];
    }
  }
}

// The V vectors of a tile's row.
template <int V, bool kHalves>
WAFER_INLINE void LoadTokens(const float* row, Floats (&out)[V]) {
  if constexpr (kHalves) {
    for (int v = 0; v < V; v += 2) {
      const Words both = AsWords(Load(row + v / 2 * kLanes));
      out[v] = AsFloats(both << 16);
      out[v + 1] = AsFloats(both & 0xffff0000u);
    }
  } else {
    for (int v = 0; v < V; ++v) out[v] = Load(row + v * kLanes);
  }
}

// Adds the slots of outputs [c0, c0 + kTogether) of a slice to their sums.
template <int V, bool kHalves, bool kSame, bool kFresh>
WAFER_INLINE void AddOutputs(const Slice& slice, int c0, const float* values, const uint8_t* offsets,
                             const float* block, float* sums) {
  constexpr int kStride = V * kLanes, kRow = RowFloats<V, kHalves>();
  float* to[kTogether];
  Floats sum[kTogether][V];
  for (int c = 0; c < kTogether; ++c) {
    to[c] = sums + (slice.rows[c0 + c] & kRowBits) * kStride;
    for (int v = 0; v < V; ++v) sum[c][v] = kFresh ? Floats{} : Load(to[c] + v * kLanes);
  }
  values += c0;
  offsets += c0;
  const uint8_t* const end = offsets + kSlice * slice.counts[0];
  for (; offsets < end; values += kSlice, offsets += kSlice) {
    Floats x[V];
    if (kSame) LoadTokens<V, kHalves>(block + size_t{offsets[0]} * kRow, x);
    for (int c = 0; c < kTogether; ++c) {
      if (!kSame) LoadTokens<V, kHalves>(block + size_t{offsets[c]} * kRow, x);
      const Floats weight = Splat(values[c]);
      for (int v = 0; v < V; ++v) sum[c][v] += weight * x[v];
    }
  }
  for (int c = 0; c < kTogether; ++c) {
    for (int v = 0; v < V; ++v) Store(to[c] + v * kLanes, sum[c][v]);
  }
}

template <int V, bool kHalves, bool kFresh>
__attribute__((noinline)) void AddAlike(const Slice& slice, const float* values, const uint8_t* offsets,
                                        const float* block, float* sums) {
  for (int c = 0; c < kSlice; c += kTogether) {
    AddOutputs<V, kHalves, true, kFresh>(slice, c, values, offsets, block, sums);
  }
}

// Adds the slices of a segment; the first one of a group makes the sums.
template <int V, bool kHalves, bool kFresh>
__attribute__((noinline)) void AddSegment(const Slice* slice, const Slice* end, const float* values,
                                          const uint8_t* offsets, const float* block, float* sums,
                                          Prefetch* prefetch) {
  for (; slice < end; ++slice) {
    if (!kFresh && slice->counts[0] == 0) break;  // the others of the segment have none, too
    const float* from = values + slice->slots;
    const uint8_t* at = offsets + slice->slots;
    if (__builtin_expect(slice->rows[0] & kAlike, 0)) {
      AddAlike<V, kHalves, kFresh>(*slice, from, at, block, sums);
    } else {
      for (int c = 0; c < kSlice; c += kTogether) {
        AddOutputs<V, kHalves, false, kFresh>(*slice, c, from, at, block, sums);
      }
    }
    if (prefetch != nullptr) prefetch->Next();
  }
}

template <bool kBf16, int V, bool kHalves>
void Multiply(const Factor* factors, int factor_count, int64_t first, int tokens, int64_t group0,
              int64_t group1, const float* bias, float* sums, const Matrix& y, const Ahead& ahead) {
  constexpr int64_t kBlockFloats = (kBlock + 1) * RowFloats<V, kHalves>();
  const int64_t rows = factors->walk.rows, size = factors->walk.group, slices = size / kSlice;
  Prefetch next(ahead.x, ahead.first, ahead.tokens, 0, ahead.x.columns,
                (group1 - group0) * slices);
  for (int64_t group = group0; group < group1; ++group) {
    const int64_t row0 = group * size;
    const int count = static_cast<int>(rows - row0 < size ? rows - row0 : size);
    Prefetch output(y, first, tokens, row0, count, slices);
    for (int f = 0; f < factor_count; ++f) {
      const Walk& walk = factors[f].walk;
      const float* values = factors[f].values;
      for (int64_t block = 0; block < walk.blocks; ++block) {
        const bool last = f == factor_count - 1 && block == walk.blocks - 1;
        const Slice* slice = walk.slices + (group * walk.blocks + block) * slices;
        const float* from = factors[f].tile + block * kBlockFloats;
        if (f == 0 && block == 0) {
          AddSegment<V, kHalves, true>(slice, slice + slices, values, walk.offsets, from, sums, &next);
        } else {
          AddSegment<V, kHalves, false>(slice, slice + slices, values, walk.offsets, from, sums,
                                        last ? &output : nullptr);
        }
      }
    }
    Unpack<kBf16, V>(sums, bias, first, tokens, row0, count, y);
  }
}

// Dot products of a slice, four or two outputs at a time: a vector of partial sums for the outputs
// that are taken together, so that kLanes / kTogether vectors fold to kLanes finished sums, in the
// order of the slots.
constexpr int kPartial = kSlice / kTogether;  // vectors for each place of a slice
constexpr int kFoldAtOnce = kLanes / kTogether;
constexpr int kBuffer = 32 + kBlock * kPartial;

template <int V, bool kHalves, bool kSame>
WAFER_INLINE void DotSlice(const Slice& slice, int c0, const uint8_t* offsets, const float* block,
                           const float* const (&dy_rows)[kSlice], float* partial) {
  constexpr int kRow = RowFloats<V, kHalves>();
  Floats dy[kTogether][V];
  for (int c = 0; c < kTogether; ++c) LoadTokens<V, kHalves>(dy_rows[c0 + c], dy[c]);
  offsets += slice.slots + c0;
  partial += c0 / kTogether * kLanes;
  const int length = slice.counts[0];
  for (int j = 0; j < length; ++j, offsets += kSlice, partial += kPartial * kLanes) {
    Floats x[V], dots[kTogether];
    if (kSame) LoadTokens<V, kHalves>(block + size_t{offsets[0]} * kRow, x);
    for (int c = 0; c < kTogether; ++c) {
      if (!kSame) LoadTokens<V, kHalves>(block + size_t{offsets[c]} * kRow, x);
      dots[c] = dy[c][0] * x[0];
      for (int v = 1; v < V; ++v) dots[c] += dy[c][v] * x[v];
    }
    Store(partial, FoldAll<kTogether, 1>(dots));
  }
}

// Finishes whole vectors of `count` in the buffer, or with zeros behind them all of it; returns
// how many are left, moved to its start.
WAFER_INLINE int Finish(float* buffer, int count, bool all, bool fresh, float*& out) {
  if (all) {
    for (; count % kFoldAtOnce != 0; ++count) Store(buffer + count * kLanes, Floats{});
  }
  int i = 0;
  for (; i + kFoldAtOnce <= count; i += kFoldAtOnce, out += kLanes) {
    Floats v[kFoldAtOnce];
    for (int u = 0; u < kFoldAtOnce; ++u) v[u] = Load(buffer + (i + u) * kLanes);
    const Floats total = FoldAll<kLanes, kTogether>(v);
    Store(out, fresh ? total : Load(out) + total);
  }
  for (int u = i; u < count; ++u) Store(buffer + (u - i) * kLanes, Load(buffer + u * kLanes));
  return count - i;
}

template <int V, bool kHalves>
void Dot(const Walk& walk, const float* x_tile, const float* dy_tile, bool fresh, float* out,
         const Ahead& ahead) {
  constexpr int kRow = RowFloats<V, kHalves>();
  alignas(64) float buffer[(kBuffer + kFoldAtOnce) * kLanes];
  const int64_t slices = walk.group / kSlice;
  Prefetch next(ahead.x, ahead.first, ahead.tokens, 0, ahead.x.columns, walk.groups * slices);
  for (int64_t group = 0; group < walk.groups; ++group) {
    for (int64_t block = 0; block < walk.blocks; ++block) {
      const Slice* slice = walk.slices + (group * walk.blocks + block) * slices;
      const float* from = x_tile + block * (kBlock + 1) * kRow;
      float* to = out + slice->slots;
      int count = 0;
      for (const Slice* end = slice + slices; slice < end && slice->counts[0] > 0; ++slice) {
        const float* dy_rows[kSlice];
        for (int c = 0; c < kSlice; ++c) {
          const int64_t row = slice->rows[c] & kRowBits;
          // The row of zeros stands for an output that is not there.
          dy_rows[c] = dy_tile + (row == walk.group ? kBlock : TileRow(group * walk.group + row)) * kRow;
        }
        for (int c = 0; c < kSlice; c += kTogether) {
          float* partial = buffer + count * kLanes;
          if (slice->rows[0] & kAlike) {
            DotSlice<V, kHalves, true>(*slice, c, walk.offsets, from, dy_rows, partial);
          } else {
            DotSlice<V, kHalves, false>(*slice, c, walk.offsets, from, dy_rows, partial);
          }
        }
        count += slice->counts[0] * kPartial;
        if (count >= 32) count = Finish(buffer, count, false, fresh, to);
        if (block == 0) next.Next();
      }
      if (count > 0) Finish(buffer, count, true, fresh, to);
    }
  }
}

// kCount panels of a slice whose four outputs keep the same panels: an outer product per token.
template <int kCount>
WAFER_INLINE void AddPanels(const float* panels, const uint8_t* offsets, int width, int tokens,
                            const float* dy, int dy_stride, bool fresh, float* out) {
  constexpr int kParts = kPanel / kLanes > 0 ? kPanel / kLanes : 1;
  for (int part = 0; part < kParts; ++part) {
    const float* panel[kCount];
    Floats sum[kSlice][kCount];
    for (int p = 0; p < kCount; ++p) {
      panel[p] = panels + size_t{offsets[p * kPanel * kSlice]} * width + part * kLanes;
      for (int c = 0; c < kSlice; ++c) sum[c][p] = Floats{};
    }
    for (int t = 0; t < tokens; ++t) {
      Floats x[kCount];
      for (int p = 0; p < kCount; ++p) x[p] = Load(panel[p] + t * kPanel);
      for (int c = 0; c < kSlice; ++c) {
        const Floats weight = Splat(dy[c * dy_stride + t]);
        for (int p = 0; p < kCount; ++p) sum[c][p] += weight * x[p];
      }
    }
    for (int p = 0; p < kCount; ++p) {
      Floats total[kSlice] = {sum[0][p], sum[1][p], sum[2][p], sum[3][p]};
      ToSlots(total);
      float* to = out + (p * kPanel + part * kLanes) * kSlice;
      for (int i = 0; i < kSlice; ++i, to += kLanes) {
        Store(to, fresh ? total[i] : Load(to) + total[i]);
      }
    }
  }
}

void DotPanels(const Walk& walk, const float* x_tile, const float* dy_tile, int stride, int tokens,
               bool fresh, float* out, const Ahead& ahead) {
  constexpr int kMany = kLanes >= 16 ? 4 : 2, kWidth = kVectors * kLanes;
  const int64_t slices = walk.group / kSlice;
  Prefetch next(ahead.x, ahead.first, ahead.tokens, 0, ahead.x.columns, walk.groups * slices);
  for (int64_t group = 0; group < walk.groups; ++group) {
    for (int64_t block = 0; block < walk.blocks; ++block) {
      const Slice* slice = walk.slices + (group * walk.blocks + block) * slices;
      const float* panels = x_tile + block * kBlock * kWidth;
      for (const Slice* end = slice + slices; slice < end && slice->counts[0] > 0; ++slice) {
        const int64_t row = group * walk.group + (slice->rows[0] & kRowBits);
        const float* dy = dy_tile + TileRow(row) * stride;
        const uint8_t* offsets = walk.offsets + slice->slots;
        float* to = out + slice->slots;
        int j = 0;
        for (; j + kMany * kPanel <= slice->counts[0]; j += kMany * kPanel) {
          AddPanels<kMany>(panels, offsets + j * kSlice, kWidth, tokens, dy, stride, fresh,
                           to + j * kSlice);
        }
        for (; j < slice->counts[0]; j += kPanel) {
          AddPanels<1>(panels, offsets + j * kSlice, kWidth, tokens, dy, stride, fresh,
                       to + j * kSlice);
        }
        if (block == 0) next.Next();
      }
    }
  }
}

// A tail of tokens takes a narrower tile; the caller only knows tokens.
WAFER_INLINE int VectorsFor(int tokens, bool halves) {
  return tokens <= kLanes && !halves ? 1 : tokens <= 2 * kLanes ? 2 : kVectors;
}

// Calls work(vectors, halves), both as types that hold a constant.
template <typename Work>
WAFER_INLINE void ForForm(int tokens, bool halves, const Work& work) {
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  using All = std::integral_constant<int, kVectors>;
  const int vectors = VectorsFor(tokens, halves);
  if (halves) {
    vectors == 2 ? work(Two{}, std::true_type{}) : work(All{}, std::true_type{});
  } else {
    vectors == 1   ? work(One{}, std::false_type{})
    : vectors == 2 ? work(Two{}, std::false_type{})
                   : work(All{}, std::false_type{});
  }
}

void PackEntry(const Matrix& x, int64_t first, int tokens, Form form, float* tile, float* totals) {
  if (form == Form::kPanels) {
    const auto pack = x.bf16 ? PackPanels<true> : PackPanels<false>;
    return pack(x, first, tokens, kVectors * kLanes, tile);
  }
  ForForm(tokens, form == Form::kHalves, [&](auto v, auto halves) {
    const auto pack = x.bf16 ? PackTile<true, v(), halves()> : PackTile<false, v(), halves()>;
    pack(x, first, tokens, totals, tile);
  });
}

void MultiplyEntry(const Factor* factors, int count, bool halves, int64_t first, int tokens,
                   int64_t group0, int64_t group1, const float* bias, float* sums, const Matrix& y,
                   const Ahead& ahead) {
  ForForm(tokens, halves, [&](auto v, auto half) {
    const auto multiply = y.bf16 ? Multiply<true, v(), half()> : Multiply<false, v(), half()>;
    multiply(factors, count, first, tokens, group0, group1, bias, sums, y, ahead);
  });
}

void DotEntry(const Walk& walk, const float* x_tile, const float* dy_tile, Form form, int tokens,
              bool fresh, float* slots, const Ahead& ahead) {
  if (form == Form::kPanels) {
    return DotPanels(walk, x_tile, dy_tile, VectorsFor(tokens, false) * kLanes, tokens, fresh, slots,
                     ahead);
  }
  ForForm(tokens, form == Form::kHalves, [&](auto v, auto halves) {
    Dot<v(), halves()>(walk, x_tile, dy_tile, fresh, slots, ahead);
  });
}

}  // namespace

extern "C" {
extern const wafer::TileKernels WAFER_TARGET;
const wafer::TileKernels WAFER_TARGET = {kVectors * kLanes, kLanes,    FillSlots, PackEntry,
                                         MultiplyEntry,     DotEntry, SumSlots};
}
