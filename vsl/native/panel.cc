// Dense products of float32, a panel of columns at a time; see product.h. Compiled once per target
// with WAFER_TARGET (prefix of the exported table) and WAFER_LANES (floats per vector).
//
// Goto & van de Geijn 2008: b is packed into panels that stream through the registers, six rows of
// c are held there. Everything sits in an unnamed namespace, see vectors.h.
#include "product.h"

#include <cstring>

#include "vectors.h"

namespace {

using wafer::kBlockRows;
using wafer::kDepth;
using wafer::kPanel;
using wafer::Product;

constexpr int kRows = 6;                       // rows of c in registers
constexpr int kWide = kLanes == 16 ? 4 : 2;    // vectors of a row there
constexpr int kStrip = kWide * kLanes;         // columns
static_assert(kPanel % kStrip == 0 && kBlockRows % kRows == 0, "blocks are whole");

// c[r][0..kStrip) = sum_k a[r * row + k * step] * b[k * kPanel ..], added to what is there or to the
// bias, if there is one.
template <int kCount, bool kAdd>
WAFER_INLINE void Strip(const float* a, int64_t row, int64_t step, const float* b, int64_t depth,
                        float* c, int64_t stride, const float* bias) {
  Floats sum[kCount][kWide];
  for (int r = 0; r < kCount; ++r) {
    for (int w = 0; w < kWide; ++w) {
      const float* start = kAdd ? c + r * stride : bias;
      sum[r][w] = start == nullptr ? Floats{} : Load(start + w * kLanes);
    }
  }
  for (int64_t k = 0; k < depth; ++k, a += step, b += kPanel) {
    Floats line[kWide];
    for (int w = 0; w < kWide; ++w) line[w] = Load(b + w * kLanes);
    for (int r = 0; r < kCount; ++r) {
      const Floats factor = Splat(a[r * row]);
      for (int w = 0; w < kWide; ++w) sum[r][w] += factor * line[w];
    }
  }
  for (int r = 0; r < kCount; ++r) {
    for (int w = 0; w < kWide; ++w) Store(c + r * stride + w * kLanes, sum[r][w]);
  }
}

// The same for up to kRows rows and a whole panel.
template <bool kAdd, int kCount = kRows>
void Rows(int64_t rows, const float* a, int64_t row, int64_t step, const float* b, int64_t depth,
          float* c, int64_t stride, const float* bias) {
  if constexpr (kCount > 1) {
    if (rows < kCount) return Rows<kAdd, kCount - 1>(rows, a, row, step, b, depth, c, stride, bias);
  }
  for (int64_t s = 0; s < kPanel; s += kStrip) {
    Strip<kCount, kAdd>(a, row, step, b + s, depth, c + s, stride, bias ? bias + s : nullptr);
  }
}

void Pack(const float* b, int64_t stride, int64_t depth, float* to) {
  for (int64_t n = 0; n < kPanel; n += kLanes) {
    for (int64_t k = 0; k < depth; k += kLanes) {
      Floats square[kLanes];
      for (int l = 0; l < kLanes; ++l) square[l] = Load(b + (n + l) * stride + k);
      Transpose(square);
      for (int l = 0; l < kLanes; ++l) Store(to + (k + l) * kPanel + n, square[l]);
    }
  }
}

void Lines(const Product& product, const float* b, int64_t stride, int64_t k, int64_t lines,
           float* panels, float* sums) {
  for (int64_t i = 0; i < lines; ++i, ++k, b += stride) {
    for (int64_t n = 0; n < product.columns; n += kLanes) {
      const Floats line = Load(b + n);
      Store(panels + (n / kPanel * product.depth + k) * kPanel + n % kPanel, line);
      if (sums != nullptr) Store(sums + n, i == 0 ? line : Load(sums + n) + line);
    }
  }
}

void Block(const Product& product, int64_t i, int64_t from, int64_t to, float* scratch) {
  const int64_t left = product.rows - i, rows = left < kBlockRows ? left : kBlockRows;
  for (int64_t k = 0; k < product.depth; k += kDepth) {
    const int64_t rest = product.depth - k, depth = rest < kDepth ? rest : kDepth;
    const float* a = product.a + i * product.a_row + k * product.a_depth;
    int64_t row = product.a_row, step = product.a_depth;
    if (row == 1) {  // a transposed: its lines are far apart
      for (int64_t d = 0; d < depth; ++d) {
        std::memcpy(scratch + d * kBlockRows, a + d * step, sizeof(float) * rows);
      }
      a = scratch, step = kBlockRows;
    }
    for (int64_t j = from; j < to; ++j) {
      const float* b = product.panels + (j * product.depth + k) * kPanel;
      float* c = product.c + i * product.columns + j * kPanel;
      for (int64_t r = 0; r < rows; r += kRows) {
        const auto run = k == 0 ? Rows<false> : Rows<true>;
        run(rows - r, a + r * row, row, step, b, depth, c + r * product.columns, product.columns,
            product.bias ? product.bias + j * kPanel : nullptr);
      }
    }
  }
}

}  // namespace

extern "C" const wafer::ProductKernels WAFER_JOIN(WAFER_TARGET, _product) = {Pack, Lines, Block};
