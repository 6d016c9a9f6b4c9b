// What a per-target object offers to the rest: the work on one tile of tokens.
//
// A tile holds up to `width` tokens of a row-major [T, C] array transposed to [C][width] floats, so
// that one kept weight multiplies `width` contiguous floats. The products walk a compressed matrix
// (one row per output column) whose column indices select rows of the tile.
//
// This header is included by objects built for different instruction sets. It must define no inline
// function or template: the linker keeps one copy of those, perhaps the one an old CPU cannot run.
#ifndef WAFER_SPARSITY_TILE_H_
#define WAFER_SPARSITY_TILE_H_

#include <cstdint>

namespace wafer {

// A row-major [T, columns] array of float32 or bfloat16.
struct Matrix {
  void* data;
  int64_t columns;
  bool bf16;
};

// Compressed rows. Rows are walked in `blocks` ranges of tile rows, so that the part of the tile
// that is read at random stays in the L2 cache: entries of row r in block b are
// starts[b * rows + r] .. starts[(b + 1) * rows + r]. With one block `starts` is nullptr and the
// row pointers themselves are used.
struct Compressed {
  const int32_t* row_pointers;  // [rows + 1]
  const void* indices;          // [nnz] uint16 or int32
  bool wide;                    // int32 indices
  int64_t rows;
  const int32_t* starts;  // [(blocks + 1) * rows] or nullptr
  int64_t blocks;
};

// Tokens that will be packed next: their lines are asked for while products run, since each lies in
// another page and packing would wait for memory. `tokens` 0 asks for nothing.
struct Ahead {
  Matrix x;
  int64_t first;
  int tokens;
};

struct TileKernels {
  int width;  // tokens of a full tile
  int lanes;  // floats of a vector; a tail of tokens is rounded up to these
  // Packs tokens [first, first + tokens) into tile[columns][round(tokens)]; absent tokens are 0.
  void (*pack)(const Matrix& x, int64_t first, int tokens, float* tile);
  // y[first + t, r] = sum_j values[j] * tile[index[j]][t] for rows r in [row0, row1).
  // `scratch` holds kRowBlock * width floats.
  void (*multiply)(const Compressed& w, const float* values, const float* tile, int64_t first,
                   int tokens, int64_t row0, int64_t row1, float* scratch, const Matrix& y,
                   const Ahead& ahead);
  // dvalues[j] += sum_t x_tile[index[j]][t] * dy_tile[row of j][t]. dvalues is writable for `lanes`
  // floats past its end.
  void (*dot)(const Compressed& w, const float* x_tile, const float* dy_tile, int tokens,
              float* dvalues, const Ahead& ahead);
};

constexpr int kRowBlock = 64;          // output columns finished between two transpositions back
constexpr int kTileAlignment = 64;     // bytes

}  // namespace wafer

extern "C" {
extern const wafer::TileKernels wafer_tile_avx512;
extern const wafer::TileKernels wafer_tile_avx2;
extern const wafer::TileKernels wafer_tile_baseline;
}

#endif  // WAFER_SPARSITY_TILE_H_
