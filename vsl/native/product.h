// What a per-target object offers for dense products: packing a panel of b, and a block of c.
//
// Included by objects built for different instruction sets, so it must define no inline function or
// template (see block.h).
#ifndef WAFER_VSL_NATIVE_PRODUCT_H_
#define WAFER_VSL_NATIVE_PRODUCT_H_

#include <cstdint>

namespace wafer {

constexpr int64_t kPanel = 64;      // columns of a panel of b
constexpr int64_t kBlockRows = 48;  // rows of a block of c, a multiple of the 6 held in registers
constexpr int64_t kDepth = 512;     // of a and b taken at a time, so that they stay in cache

// c[m][n] = bias[n] + sum_k a[m * a_row + k * a_depth] * b[k][n], with c row-major and b in panels.
struct Product {
  int64_t rows, depth, columns;  // columns: a multiple of kPanel
  const float* a;
  int64_t a_row, a_depth;        // one of them is 1
  const float* panels;           // [columns / kPanel][depth][kPanel]
  const float* bias;             // [columns], or nullptr for none
  float* c;
};

struct ProductKernels {
  // Writes columns [0, kPanel) of b, each of them contiguous and `stride` floats from the next;
  // depth is a multiple of 16.
  void (*pack)(const float* b, int64_t stride, int64_t depth, float* to);
  // Adds up the lines [lines, columns] of b, `stride` floats apart, as it copies them to the panels
  // from line k on; sums [columns] may be nullptr.
  void (*lines)(const Product& product, const float* b, int64_t stride, int64_t k, int64_t lines,
                float* panels, float* sums);
  // Rows [i, i + kBlockRows) of c by panels [from, to); `scratch` holds kDepth * kBlockRows floats.
  void (*block)(const Product& product, int64_t i, int64_t from, int64_t to, float* scratch);
};

}  // namespace wafer

extern "C" {
extern const wafer::ProductKernels wafer_tile_avx512_product;
extern const wafer::ProductKernels wafer_tile_avx2_product;
extern const wafer::ProductKernels wafer_tile_baseline_product;
}

#endif  // WAFER_VSL_NATIVE_PRODUCT_H_
