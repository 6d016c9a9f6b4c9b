// What a per-target object offers for LayerNorm and RMSNorm: rows of an activation, both ways.
//
// Included by objects built for different instruction sets, so it must define no inline function or
// template (see block.h).
#ifndef WAFER_VSL_NATIVE_NORM_ROWS_H_
#define WAFER_VSL_NATIVE_NORM_ROWS_H_

#include <cstdint>

namespace wafer {

// y = (x - mean) * factor * scale + bias, factor = 1 / sqrt(mean of (x - mean)^2 + eps), of each row.
struct Normalization {
  int64_t features;    // D
  bool bf16;           // elements of x, y and their gradients; else float32
  bool centered;       // else the mean counts as 0
  float eps;
  const void* x;       // [T, D]
  const float* scale;  // [D]
};

struct NormKernels {
  // Rows [from, to) of y.
  void (*forward)(const Normalization& call, int64_t from, int64_t to, const float* bias, void* y);
  // Rows [from, to) of dx, and their sums for the gradients of scale and bias: sums [2][D], written.
  // `added` [T, D], where it is not null, is added to dx.
  void (*backward)(const Normalization& call, int64_t from, int64_t to, const void* dy,
                   const void* added, void* dx, float* sums);
};

}  // namespace wafer

extern "C" {
extern const wafer::NormKernels wafer_tile_avx512_norm;
extern const wafer::NormKernels wafer_tile_avx2_norm;
extern const wafer::NormKernels wafer_tile_baseline_norm;
}

#endif  // WAFER_VSL_NATIVE_NORM_ROWS_H_
