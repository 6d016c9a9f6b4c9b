// What a per-target object offers for decoding: a few rows of activations times a weight that is
// read once, from front to back. No inline function or template here, see tile.h.
#ifndef WAFER_SPARSITY_DECODE_H_
#define WAFER_SPARSITY_DECODE_H_

#include <cstdint>

namespace wafer {

constexpr int kGroup = 16;     // inputs of one word of the mask
constexpr int kWord = 64;      // inputs that kernels take at once: rows are padded to whole words
constexpr int kPast = 32;      // values that may be read past the end
constexpr int kPastInt8 = 64;  // the same of 8-bit values
constexpr int kWindow = 128;   // inputs that places tell apart
constexpr int kEach = 4;       // values of an output in a group
constexpr int kMostRows = 16;  // rows of activations that share one reading of the weight

enum class Number { kFloat32, kBfloat16, kInt8 };

// A weight by output column. Bit i of masks[n * groups + g] keeps input 16 g + i; the kept values
// of column n follow each other from values[pointers[n]] on, and groups are whole words of 64 inputs.
// Without masks all are kept. kPast or kPastInt8 values past the end are readable where there are
// masks. Weights of kInt8 are values times scales[n].
struct Columns {
  const void* values;
  Number number;
  const uint16_t* masks;    // nullptr: dense
  const int32_t* pointers;  // [outputs + 1]; nullptr: dense
  int64_t groups;
  const float* scales;  // [outputs] of kInt8
  bool wide;  // the processor spreads values of this size, and adds products of bytes where kInt8
};

// How rows of activations lie for a kernel, in whole words of 64 inputs.
enum class Layout {
  kGroups,  // x[groups][rows][16]
  kPairs,   // x[groups / 2][rows][2][16]: inputs 0, 2 ... of the 32, then 1, 3 ...
  // Of 8-bit weights rows are integers of 16 bits times a factor of the row. x[rows] are the factors;
  // behind x[rows][16] the integers lie as kGroups in floats, or
  kBytes,  // as uint8[groups / 4][rows][2][64]: their upper bytes plus 128, then their lower ones
  // Of slices, kWindow inputs behind a whole number of words:
  kRows,   // x[rows][inputs]
  kSides,  // x[inputs][rows]
};

// Another form, where few are kept. Outputs go in slices of 16, those that keep most first, so that a
// slice's keep about as many. A group has four values of each output of its slice, 0 where an output
// has fewer: of inputs among the 128 from 16 times the group's number on. The lower bits of
// places[group][output][i] say which of the 128; the top bit of an output's last one is a bit of the
// number, output 0's the lowest.
struct Sliced {
  const void* values;       // float32 [groups][4][16], or bfloat16 [groups][2][16][2]
  bool bf16;
  const uint8_t* places;    // [groups][16][4]
  const int32_t* pointers;  // [slices + 1], the first group of each
  const int32_t* order;     // [outputs], the output of each lane
  int64_t outputs;
  int64_t last;  // a number above is taken for this one
};

struct DecodeKernels {
  Layout (*layout)(const Columns& w);
  // Products of columns [begin, end) with `rows` (1, 2, 4, 8 or 16) rows of activations; the first `written` of them reach y[row * stride + column].
  void (*multiply)(const Columns& w, const float* x, int rows, int64_t begin, int64_t end,
                   int64_t written, float* y, int64_t stride);
};

// The same products of weights that are one stream.
struct StreamKernels {
  // Without masks; rows lie as kGroups.
  void (*dense)(const Columns& w, const float* x, int rows, int64_t begin, int64_t end,
                int64_t written, float* y, int64_t stride);
  Layout slices_take;  // kRows or kSides
  // Of slices [begin, end).
  void (*sliced)(const Sliced& w, const float* x, int rows, int64_t begin, int64_t end,
                 int64_t written, float* y, int64_t stride);
};

}  // namespace wafer

extern "C" {
extern const wafer::StreamKernels wafer_tile_avx512_streams;
extern const wafer::StreamKernels wafer_tile_avx2_streams;
extern const wafer::StreamKernels wafer_tile_baseline_streams;
// Of kInt8, masked or dense; `layout` is kBytes where this target has them, for wide weights.
extern const wafer::DecodeKernels wafer_tile_avx512_bytes;
extern const wafer::DecodeKernels wafer_tile_avx2_bytes;
extern const wafer::DecodeKernels wafer_tile_baseline_bytes;
extern const wafer::DecodeKernels wafer_tile_avx512_decode;
extern const wafer::DecodeKernels wafer_tile_avx2_decode;
extern const wafer::DecodeKernels wafer_tile_baseline_decode;
}

#endif  // WAFER_SPARSITY_DECODE_H_
