// What a per-target object offers for decoding: a few rows of activations times a weight that is
// read once, from front to back. No inline function or template here, see tile.h.
#ifndef WAFER_SPARSITY_DECODE_H_
#define WAFER_SPARSITY_DECODE_H_

#include <cstdint>

namespace wafer {

constexpr int kGroup = 16;     // inputs of one word of the mask
constexpr int kPast = 32;      // values that may be read past the end
constexpr int kMostRows = 16;  // rows of activations that share one reading of the weight

// A weight by output column. Bit i of masks[n * groups + g] keeps input 16 g + i; the kept values
// of column n follow each other from values[pointers[n]] on. Without masks all are kept. kPast values
// past the end are readable where there are masks.
struct Columns {
  const void* values;
  bool bf16;
  const uint16_t* masks;    // nullptr: dense
  const int32_t* pointers;  // [outputs + 1]; nullptr: dense
  int64_t groups;
  bool vbmi2;  // the processor spreads 16-bit values
};

// Another form, of fewer bytes where an eighth or less is kept: steps[j] is the distance of value j's
// input from the one before it in its column, the first one's from input 0.
struct Stepped {
  const void* values;
  bool bf16;
  const uint8_t* steps;
  const int32_t* pointers;  // [outputs + 1]
};

struct DecodeKernels {
  // Whether the rows for w lie by two groups, as x[(groups + 1) / 2][rows][2][16]: inputs 0, 2 ...
  // of the 32, then 1, 3 ...; else as x[groups][rows][16].
  bool (*by_pairs)(const Columns& w);
  // Products of columns [begin, end) with `rows` (1, 2, 4, 8 or 16) rows of activations; the first `written` of them reach y[row * stride + column].
  void (*multiply)(const Columns& w, const float* x, int rows, int64_t begin, int64_t end,
                   int64_t written, float* y, int64_t stride);
};

// The same products of weights that are one stream.
struct StreamKernels {
  // Without masks; rows lie as x[groups][rows][16].
  void (*dense)(const Columns& w, const float* x, int rows, int64_t begin, int64_t end,
                int64_t written, float* y, int64_t stride);
  // Rows lie as x[inputs][rows].
  void (*stepped)(const Stepped& w, const float* x, int rows, int64_t begin, int64_t end,
                  int64_t written, float* y, int64_t stride);
};

}  // namespace wafer

extern "C" {
extern const wafer::StreamKernels wafer_tile_avx512_streams;
extern const wafer::StreamKernels wafer_tile_avx2_streams;
extern const wafer::StreamKernels wafer_tile_baseline_streams;
extern const wafer::DecodeKernels wafer_tile_avx512_decode;
extern const wafer::DecodeKernels wafer_tile_avx2_decode;
extern const wafer::DecodeKernels wafer_tile_baseline_decode;
}

#endif  // WAFER_SPARSITY_DECODE_H_
