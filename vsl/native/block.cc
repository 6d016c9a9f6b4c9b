// Attention of one block of queries; see block.h. Compiled once per target with WAFER_TARGET (the
// name of the exported table) and WAFER_LANES (floats per vector).
//
// Online softmax forward (Milakov & Gimelshein 2018), scores recomputed backward (Dao et al. 2022).
// A tile of kTile x kTile scores is walked in groups of four queries, and of each group only the
// vectors of keys that one of them sees: sequences that end inside a tile cost what they hold.
// Everything sits in an unnamed namespace, see block.h.
#include "block.h"

#include <cmath>
#include <cstring>

#include "vectors.h"

namespace {

using wafer::Attention;
using wafer::Backward;
using wafer::kTile;
using wafer::Packed;

constexpr int kRows = 4;                         // queries of a group
constexpr int kGroups = kTile / kRows;
constexpr int kVectors = kLanes == 16 ? 4 : 2;   // vectors of a row held in registers
// Scores are logarithms to base 2, up to a factor of the probabilities.
constexpr float kFloor = -1e20f;                 // first offset of a row, above kHidden
constexpr float kHidden = -1e30f;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
// How far a row's scores may pass its offset: what was summed is scaled anew only beyond.
constexpr float kSlack = 8.0f;

typedef int32_t LooseInts __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

// c[r][..] (+)= sum_d a[r * rs + d * es] * b[d * bs + ..] for a group of rows, kWide vectors wide.
template <int kWide, bool kAdd>
WAFER_INLINE void Micro(const float* a, int64_t rs, int64_t es, const float* b, int64_t bs,
                        int depth, float* c, int64_t cs) {
  Floats sum[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int w = 0; w < kWide; ++w) sum[r][w] = kAdd ? Load(c + r * cs + w * kLanes) : Floats{};
  }
  for (int d = 0; d < depth; ++d) {
    Floats row[kWide];
    for (int w = 0; w < kWide; ++w) row[w] = Load(b + d * bs + w * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Floats factor = Splat(a[r * rs + d * es]);
      for (int w = 0; w < kWide; ++w) sum[r][w] += factor * row[w];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int w = 0; w < kWide; ++w) Store(c + r * cs + w * kLanes, sum[r][w]);
  }
}

template <bool kAdd>
void Multiply(const float* a, int64_t rs, int64_t es, const float* b, int64_t bs, int depth,
              float* c, int64_t cs, int vectors) {
  for (; vectors >= kVectors; vectors -= kVectors, b += kVectors * kLanes, c += kVectors * kLanes) {
    Micro<kVectors, kAdd>(a, rs, es, b, bs, depth, c, cs);
  }
  if constexpr (kVectors > 2) {
    if (vectors == 3) return Micro<3, kAdd>(a, rs, es, b, bs, depth, c, cs);
    if (vectors == 2) return Micro<2, kAdd>(a, rs, es, b, bs, depth, c, cs);
  }
  if (vectors == 1) Micro<1, kAdd>(a, rs, es, b, bs, depth, c, cs);
}

// The keys that each group of queries of a block sees.
struct Ranges {
  int rows;                // queries of the block
  int64_t first, last;     // key blocks
  int64_t low[kGroups], high[kGroups];

  Ranges(const Attention& call, int64_t i) {
    const int64_t start = i * kTile;
    rows = static_cast<int>(call.queries - start < kTile ? call.queries - start : kTile);
    int64_t least = INT64_MAX, most = 0;
    for (int g = 0; g < kGroups; ++g) {
      low[g] = INT64_MAX, high[g] = 0;
      for (int r = g * kRows; r < (g + 1) * kRows && r < rows; ++r) {
        const int64_t a = call.low[start + r], b = call.high[start + r];
        if (b <= a) continue;
        low[g] = a < low[g] ? a : low[g];
        high[g] = b > high[g] ? b : high[g];
      }
      least = low[g] < least ? low[g] : least;
      most = high[g] > most ? high[g] : most;
    }
    first = most > 0 ? least / kTile : 0;
    last = (most + kTile - 1) / kTile;
  }
};

// Vectors of tile j that hold a key which group g sees: [begin, end).
struct Span {
  int begin, end;
  Span(const Ranges& ranges, int g, int64_t j) {
    const int64_t a = ranges.low[g] - j * kTile, b = ranges.high[g] - j * kTile;
    begin = static_cast<int>(a <= 0 ? 0 : a >= kTile ? kTile / kLanes : a / kLanes);
    end = static_cast<int>(b <= 0 ? 0 : b >= kTile ? kTile / kLanes : (b + kLanes - 1) / kLanes);
    if (end < begin) end = begin;
  }
  bool empty() const { return begin == end; }
  int size() const { return end - begin; }
};

WAFER_INLINE Words Finalise(Words h) {
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  return h ^ (h >> 16);
}
uint32_t Absorb(uint32_t state, uint32_t coordinate) {  // vsl.noise.hash_bits
  uint32_t h = state ^ (coordinate * 0x9E3779B9u + 1);
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  return h ^ (h >> 16);
}

// One row of a tile: scores, visibility, dropout of kLanes keys at a time.
struct Row {
  const float* bias;   // at the tile's first key, or nullptr
  const int32_t* position;
  Ints low, high;      // visible lanes, counted from the tile's first key
  uint32_t state;
  const Attention& call;

  Row(const Attention& c, int64_t query, int64_t n, int64_t j) : call(c) {
    const int64_t slot = j * kTile;
    bias = c.profile == nullptr
               ? nullptr
               : c.profile + n * c.profile_width + c.profile_zero + slot - query;
    position = c.position + slot;
    state = c.noise == nullptr ? 0 : Absorb(c.noise[query], static_cast<uint32_t>(n));
    low = Ints{} + static_cast<int32_t>(c.low[query] - slot);
    high = Ints{} + static_cast<int32_t>(c.high[query] - slot);
  }
  // Of a score without bias.
  WAFER_INLINE Floats Score(const Row& row, Floats s, int w) {
    if (row.bias != nullptr) s = s + Load(row.bias + w * kLanes) * kLog2E;
    const Ints lane = LaneNumbers(AllLanes{}) + w * kLanes;
    return ((lane >= row.low) & (lane < row.high)) ? s : Splat(kHidden);
  }
  WAFER_INLINE Floats Keep(const Row& row, int w) {
    const Ints at = *reinterpret_cast<const LooseInts*>(row.position + w * kLanes);
    const Words bits = Finalise((Words{} + row.state) ^ (reinterpret_cast<Words>(at) * 0x9E3779B9u + 1));
    return bits < (Words{} + row.call.threshold) ? Splat(row.call.keep) : Floats{};
  }
};

// Whether a query sees all keys of a span, and its scores are the products alone.
bool IsPlain(const Attention& call, const Span& span, int64_t query, int64_t j) {
  const int64_t slot = j * kTile;
  return call.profile == nullptr && call.noise == nullptr &&
         call.low[query] <= slot + span.begin * kLanes &&
         call.high[query] >= slot + span.end * kLanes;
}

// Copies the rows that are used, times a factor; the others, which may hold anything, become 0.
template <typename Used>
WAFER_INLINE void CopyRows(const float* from, int64_t stride, int64_t width, float factor, Used used,
                           float* to) {
  for (int r = 0; r < kTile; ++r, from += stride, to += width) {
    // Rows lie far apart, where the processor does not fetch ahead by itself.
    for (int64_t h = 0; h < width; h += 16) __builtin_prefetch(from + 6 * stride + h);
    if (used(r)) {
      for (int64_t h = 0; h < width; h += kLanes) Store(to + h, Load(from + h) * factor);
    } else {
      std::memset(to, 0, sizeof(float) * width);
    }
  }
}

template <typename Used>
WAFER_INLINE void Transposed(const float* from, int64_t stride, int64_t width, Used used, float* to) {
  for (int r = 0; r < kTile; r += kLanes) {
    for (int64_t h = 0; h < width; h += kLanes) {
      Floats square[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        square[l] = used(r + l) ? Load(from + (r + l) * stride + h) : Floats{};
      }
      Transpose(square);
      for (int l = 0; l < kLanes; ++l) Store(to + (h + l) * kTile + r, square[l]);
    }
  }
}

// Whether a query of block i is there and sees a key.
struct Seeing {
  const Attention& call;
  int64_t start;
  Seeing(const Attention& c, int64_t i) : call(c), start(i * kTile) {}
  bool operator()(int r) const {
    return start + r < call.queries && call.low[start + r] < call.high[start + r];
  }
};

void Pack(const Attention& call, int64_t key_head, int64_t j, const Packed& packed) {
  const int32_t* position = call.position + j * kTile;
  const auto used = [position](int r) { return position[r] >= 0; };
  const int64_t stride = call.key_heads * call.width;
  const int64_t block = j % packed.places * kTile * call.width;
  const int64_t start = j * kTile * stride + key_head * call.width;
  if (packed.k) CopyRows(call.k + start, stride, call.width, 1, used, packed.k + block);
  if (packed.kt) Transposed(call.k + start, stride, call.width, used, packed.kt + block);
  if (packed.v) CopyRows(call.v + start, stride, call.width, 1, used, packed.v + block);
  if (packed.vt) Transposed(call.v + start, stride, call.width, used, packed.vt + block);
}

// Turns the scores of a row into probabilities times 2^-top, and adds them to total. Where a score
// passes top by more than kSlack, top rises to it, and what was summed shrinks.
WAFER_INLINE void Softmax(const Attention& call, const Span& span, int64_t query, int64_t n,
                          int64_t j, float* score, float* acc, int features, float& top,
                          Floats& total) {
  const bool plain = IsPlain(call, span, query, j);
  const Row row(call, query, n, j);
  Floats most = Splat(top);
  for (int w = span.begin; w < span.end; ++w) {
    Floats s = Load(score + w * kLanes);
    if (!plain) {
      s = Row::Score(row, s, w);
      Store(score + w * kLanes, s);
    }
    most = Larger(most, s);
  }
  const float new_top = LargestLane(most);
  if (new_top > top + kSlack) {
    const Floats shrink = Exp2(Splat(top - new_top));
    top = new_top;
    total *= shrink;
    for (int w = 0; w < features; ++w) Store(acc + w * kLanes, Load(acc + w * kLanes) * shrink);
  }
  for (int w = span.begin; w < span.end; ++w) {
    Floats x = Exp2(Load(score + w * kLanes) - top);
    total += x;
    if (call.noise != nullptr) x *= Row::Keep(row, w);
    Store(score + w * kLanes, x);
  }
}

void Forward(const Attention& call, const Packed& packed, int64_t i, int64_t n, float* scratch,
             float* out, float* lse) {
  const int64_t width = call.width, stride = call.heads * width, start = i * kTile;
  const int features = static_cast<int>(width / kLanes);
  float* q = scratch;
  float* acc = q + kTile * width;
  float* p = acc + kTile * width;
  const Ranges ranges(call, i);
  CopyRows(call.q + start * stride + n * width, stride, width, call.scale * kLog2E,
           Seeing(call, i), q);
  std::memset(acc, 0, sizeof(float) * kTile * width);
  float top[kTile];
  Floats total[kTile];
  for (int r = 0; r < kTile; ++r) top[r] = kFloor, total[r] = Floats{};

  for (int64_t j = ranges.first; j < ranges.last; ++j) {
    const int64_t at = j % packed.places * kTile * width;
    const float* kt = packed.kt + at;
    const float* v = packed.v + at;
    for (int g = 0; g < kGroups; ++g) {
      const Span span(ranges, g, j);
      if (span.empty()) continue;
      const int r0 = g * kRows, k0 = span.begin * kLanes;
      Multiply<false>(q + r0 * width, width, 1, kt + k0, kTile, static_cast<int>(width), p + k0,
                      kTile, span.size());
      for (int r = r0; r < r0 + kRows; ++r) {
        float* score = p + (r - r0) * kTile;
        if (r >= ranges.rows) {
          for (int w = span.begin; w < span.end; ++w) Store(score + w * kLanes, Floats{});
          continue;
        }
        Softmax(call, span, start + r, n, j, score, acc + r * width, features, top[r], total[r]);
      }
      Multiply<true>(p + k0, kTile, 1, v + k0 * width, width, span.size() * kLanes,
                     acc + r0 * width, width, features);
    }
  }
  for (int r = 0; r < ranges.rows; ++r) {
    const float sum = SumOfLanes(total[r]);
    lse[n * call.queries + start + r] = sum > 0 ? top[r] * kLn2 + std::log(sum) : -kHidden;
    const Floats factor = Splat(sum > 0 ? 1.0f / sum : 0.0f);
    float* to = out + (start + r) * stride + n * width;
    for (int w = 0; w < features; ++w) Store(to + w * kLanes, Load(acc + r * width + w * kLanes) * factor);
  }
}

// The block being differentiated, and its buffers.
struct Block {
  float *q, *d_out, *dq;  // [kTile][H]; q is scaled, dq not yet
  float *p, *ds;          // [kTile][kTile], 0 where no key is seen
  float *dp;              // [kRows][kTile]
  float lse[kTile], delta[kTile];  // lse to base 2
};

// Fills a group's rows of p and ds from the raw scores in p and the raw dp.
void Differentiate(const Attention& call, const Backward& io, Block& block, const Ranges& ranges,
                   const Span& span, int g, int64_t i, int64_t n, int64_t j) {
  for (int r = g * kRows; r < (g + 1) * kRows; ++r) {
    float* p = block.p + r * kTile;
    float* ds = block.ds + r * kTile;
    const float* dp = block.dp + (r % kRows) * kTile;
    for (int w = 0; w < kTile / kLanes; ++w) {
      if (w < span.begin || w >= span.end || r >= ranges.rows) {
        Store(p + w * kLanes, Floats{});
        Store(ds + w * kLanes, Floats{});
      }
    }
    if (r >= ranges.rows) continue;
    const bool plain = IsPlain(call, span, i * kTile + r, j);
    const Row row(call, i * kTile + r, n, j);
    for (int w = span.begin; w < span.end; ++w) {
      const int at = w * kLanes;
      Floats x = Load(p + at) * kLog2E;
      if (!plain) x = Row::Score(row, x, w);
      x = Exp2(x - block.lse[r]);
      Floats gradient = Load(dp + at);
      if (call.noise != nullptr) {
        const Floats keep = Row::Keep(row, w);
        gradient = x * (gradient * keep - block.delta[r]);
        x *= keep;
      } else {
        gradient = x * (gradient - block.delta[r]);
      }
      if (io.d_profile != nullptr) {
        float* to = io.d_profile + call.profile_zero + j * kTile - (i * kTile + r) + at;
        Store(to, Load(to) + gradient);
      }
      Store(p + at, x);
      Store(ds + at, gradient);
    }
  }
}

// Adds to dk and dv of tile j: four keys at a time, over the queries whose group reaches them.
void AddKeyGradients(const Attention& call, const Packed& packed, const Backward& io,
                     const Block& block, const Ranges& ranges, int64_t j) {
  const int64_t width = call.width;
  const int features = static_cast<int>(width / kLanes);
  for (int w = 0; w < kTile / kLanes; ++w) {
    int from = kTile, to = 0;
    for (int g = 0; g < kGroups; ++g) {
      const Span span(ranges, g, j);
      if (w < span.begin || w >= span.end) continue;
      from = from < g * kRows ? from : g * kRows;
      to = (g + 1) * kRows;
    }
    if (from >= to) continue;
    for (int k = w * kLanes; k < (w + 1) * kLanes; k += kRows) {
      const int64_t at = (j % packed.places * kTile + k) * width;
      Multiply<true>(block.ds + from * kTile + k, 1, kTile, block.q + from * width, width,
                     to - from, io.dk + at, width, features);
      Multiply<true>(block.p + from * kTile + k, 1, kTile, block.d_out + from * width, width,
                     to - from, io.dv + at, width, features);
    }
  }
}

void BackwardBlock(const Attention& call, const Packed& packed, int64_t i, int64_t n,
                   float* scratch, const Backward& io) {
  const int64_t width = call.width, stride = call.heads * width, start = i * kTile;
  const int features = static_cast<int>(width / kLanes);
  Block block;
  block.q = scratch;
  block.d_out = block.q + kTile * width;
  block.dq = block.d_out + kTile * width;
  block.p = block.dq + kTile * width;
  block.ds = block.p + kTile * kTile;
  block.dp = block.ds + kTile * kTile;
  const Ranges ranges(call, i);
  const int64_t head = start * stride + n * width;
  CopyRows(call.q + head, stride, width, call.scale, Seeing(call, i), block.q);
  CopyRows(io.d_out + head, stride, width, 1, Seeing(call, i), block.d_out);
  std::memset(block.dq, 0, sizeof(float) * kTile * width);
  for (int r = 0; r < ranges.rows; ++r) {
    Floats sum{};
    for (int w = 0; w < features; ++w) {
      sum += Load(io.out + head + r * stride + w * kLanes) * Load(block.d_out + r * width + w * kLanes);
    }
    block.delta[r] = SumOfLanes(sum);
    block.lse[r] = io.lse[n * call.queries + start + r] * kLog2E;
  }
  for (int64_t j = ranges.first; j < ranges.last; ++j) {
    const int64_t at = j % packed.places * kTile * width;
    for (int g = 0; g < kGroups; ++g) {
      const Span span(ranges, g, j);
      const int r0 = g * kRows, k0 = span.begin * kLanes, depth = static_cast<int>(width);
      if (span.empty()) {
        std::memset(block.p + r0 * kTile, 0, sizeof(float) * kRows * kTile);
        std::memset(block.ds + r0 * kTile, 0, sizeof(float) * kRows * kTile);
        continue;
      }
      Multiply<false>(block.q + r0 * width, width, 1, packed.kt + at + k0, kTile, depth,
                      block.p + r0 * kTile + k0, kTile, span.size());
      Multiply<false>(block.d_out + r0 * width, width, 1, packed.vt + at + k0, kTile, depth,
                      block.dp + k0, kTile, span.size());
      Differentiate(call, io, block, ranges, span, g, i, n, j);
      Multiply<true>(block.ds + r0 * kTile + k0, kTile, 1, packed.k + at + k0 * width, width,
                     span.size() * kLanes, block.dq + r0 * width, width, features);
    }
    AddKeyGradients(call, packed, io, block, ranges, j);
  }
  for (int r = 0; r < ranges.rows; ++r) {
    float* to = io.dq + head + r * stride;
    for (int w = 0; w < features; ++w) {
      Store(to + w * kLanes, Load(block.dq + r * width + w * kLanes) * call.scale);
    }
  }
}


}  // namespace

extern "C" const wafer::BlockKernels WAFER_TARGET = {Pack, Forward, BackwardBlock};
