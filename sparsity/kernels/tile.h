// What a per-target object offers to the rest: the work on one tile of tokens.
//
// A tile holds up to `width` tokens of a row-major [T, C] array, transposed: a row of tokens for
// each column, so that one kept weight multiplies contiguous numbers. Behind each kBlock columns
// lies a row of zeros, for slots of a walk that have no weight. A tile of bfloat16 has two tokens in
// a word, those of the first vector in the low halves and those of the second in the high ones.
//
// This header is included by objects built for different instruction sets. It must define no inline
// function or template: the linker keeps one copy of those, perhaps the one an old CPU cannot run.
#ifndef WAFER_SPARSITY_TILE_H_
#define WAFER_SPARSITY_TILE_H_

#include <cstdint>

#include "walk.h"

namespace wafer {

// A row-major [T, columns] array of float32 or bfloat16.
struct Matrix {
  void* data;
  int64_t columns;
  bool bf16;
};

// How columns are packed: as words of two bfloat16, as floats, or as [C / kPanel] panels of
// [tokens][kPanel] floats.
enum class Form { kHalves, kFloats, kPanels };

// Tokens that will be packed next: their lines are asked for while products run, since each lies in
// another page and packing would wait for memory. `tokens` 0 asks for nothing.
struct Ahead {
  Matrix x;
  int64_t first;
  int tokens;
};

// What a product adds up: values in the order of a walk's slots, times rows of a tile.
struct Factor {
  Walk walk;
  const float* values;
  const float* tile;
};

struct TileKernels {
  int width;  // tokens of a full tile
  int lanes;  // floats of a vector; a tail of tokens is rounded up to these
  // Values of the slices [slice, end) of a segment in the order of its slots. starts[r] is where the
  // values of row r of the group begin there, and then where they end.
  void (*fill)(const Slice* slice, const Slice* end, int32_t* starts, const float* values,
               int64_t nnz, float* slots);
  // Packs tokens [first, first + tokens); absent tokens are 0. Adds up the tokens of each column in
  // `totals`, where it is not null and the form not kPanels.
  void (*pack)(const Matrix& x, int64_t first, int tokens, Form form, float* tile, float* totals);
  // y[first + t, r] = bias[r] + sum of values[slot] * tile[offset of slot][t] over the slots of r of
  // all factors, for rows r of groups [group0, group1), which are those of each factor. `bias` may
  // be null. `sums` holds (group + 1) * width floats.
  void (*multiply)(const Factor* factors, int count, bool halves, int64_t first, int tokens,
                   int64_t group0, int64_t group1, const float* bias, float* sums, const Matrix& y,
                   const Ahead& ahead);
  // slots[slot] += sum over t of x_tile[offset of slot][t] * dy_tile[row of slot][t], or = where
  // `fresh`. kSlotsBehind more floats are
  // writable behind the slots. x_tile has `form`; dy_tile too, but
  // floats where x has panels.
  void (*dot)(const Walk& walk, const float* x_tile, const float* dy_tile, Form form, int tokens,
              bool fresh, float* slots, const Ahead& ahead);
  // Undoes `fill` for the sum of `parts` arrays of slots, `stride` apart. kSlotsBehind more floats
  // are readable behind each.
  void (*sum)(const Slice* slice, const Slice* end, int32_t* starts, const float* slots,
              int64_t stride, int64_t parts, float* values);
};
constexpr int64_t kSlotsBehind = 64;

constexpr int kTileAlignment = 64;  // bytes

}  // namespace wafer

extern "C" {
extern const wafer::TileKernels wafer_tile_avx512;
extern const wafer::TileKernels wafer_tile_avx2;
extern const wafer::TileKernels wafer_tile_baseline;
}

#endif  // WAFER_SPARSITY_TILE_H_
