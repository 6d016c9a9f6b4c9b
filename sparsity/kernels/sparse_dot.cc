// y = x W and its gradients for a W kept in compressed form, as XLA FFI handlers for the CPU.
//
// The token axis is cut into tiles (see tile.h). Output columns of a tile are independent, so y and
// dx do not depend on how tiles meet threads. dW sums over tokens: each thread of the pool owns a
// fixed range of tiles and the partial sums are added in order, so a run repeats bit for bit on the
// same number of threads.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "checks.h"
#include "runtime.h"
#include "tile.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;

// A tile is read at random, so a walk covers only a block of its rows at a time: small enough for
// the caches, large enough that a row of W still has this many entries in it on average.
constexpr int64_t kRun = 52;
constexpr int64_t kLeastBlock = 128, kMostBlock = 2048;

const TileKernels& Kernels() {
  static const TileKernels& kernels = BestOf(
      wafer_tile_baseline, WAFER_IF_AVX2(wafer_tile_avx2), WAFER_IF_AVX512(wafer_tile_avx512));
  return kernels;
}

// Floats of a tile with this many columns.
size_t TileFloats(int64_t columns) {
  return static_cast<size_t>(columns) * Kernels().width + Kernels().lanes;
}

bool IsFloat(ffi::DataType t) { return t == ffi::DataType::F32 || t == ffi::DataType::BF16; }

Matrix AsMatrix(const ffi::AnyBuffer& buffer) {
  return {buffer.untyped_data(), buffer.dimensions()[1],
          buffer.element_type() == ffi::DataType::BF16};
}

// A compressed matrix and, when its tile is too large for one walk, where each block starts.
class Walk {
 public:
  Walk(ffi::ThreadPool& pool, const ffi::AnyBuffer& indices,
       const ffi::Buffer<ffi::S32>& pointers, int64_t tile_rows)
      : rows_(static_cast<int64_t>(pointers.element_count()) - 1),
        block_rows_(BlockRows(indices.element_count(), rows_, tile_rows)),
        blocks_(std::max<int64_t>(1, (tile_rows + block_rows_ - 1) / block_rows_)),
        starts_(blocks_ > 1 ? sizeof(int32_t) * (blocks_ + 1) * rows_ : 1) {
    w_ = {pointers.typed_data(), indices.untyped_data(),
          indices.element_type() != ffi::DataType::U16, rows_, nullptr, blocks_};
    if (blocks_ > 1 && starts_.ok()) {
      w_.wide ? Split<int32_t>(pool) : Split<uint16_t>(pool);
      w_.starts = starts_.as<int32_t>();
    }
  }
  bool ok() const { return starts_.ok(); }
  const Compressed& get() const { return w_; }

 private:
  static int64_t BlockRows(int64_t nnz, int64_t rows, int64_t tile_rows) {
    const double density = static_cast<double>(nnz) / std::max<int64_t>(1, rows * tile_rows);
    const int64_t wanted = static_cast<int64_t>(kRun / std::max(density, 1e-6)) / 64 * 64;
    const int64_t block = std::min(std::max(wanted, kLeastBlock), kMostBlock);
    return tile_rows < block + block / 2 ? std::max<int64_t>(1, tile_rows) : block;
  }

  template <typename Index>
  void Split(ffi::ThreadPool& pool) {
    constexpr int64_t kChunk = 256;
    const Index* indices = static_cast<const Index*>(w_.indices);
    int32_t* starts = starts_.as<int32_t>();
    ParallelFor(pool, (rows_ + kChunk - 1) / kChunk, [&](int64_t chunk) {
      for (int64_t r = chunk * kChunk; r < std::min(rows_, (chunk + 1) * kChunk); ++r) {
        const Index* at = indices + w_.row_pointers[r];
        const Index* const end = indices + w_.row_pointers[r + 1];
        for (int64_t b = 0; b < blocks_; ++b) {
          at = std::lower_bound(at, end, b * block_rows_);
          starts[b * rows_ + r] = static_cast<int32_t>(at - indices);
        }
        starts[blocks_ * rows_ + r] = static_cast<int32_t>(end - indices);
      }
    });
  }

  int64_t rows_, block_rows_, blocks_;
  Scratch starts_;
  Compressed w_;
};

// The tile `steps` tiles after the one that starts at `first`.
Ahead After(const Matrix& x, int64_t first, int64_t steps, int64_t tokens) {
  const int64_t next = first + steps * Kernels().width;
  return {x, next, static_cast<int>(std::clamp<int64_t>(tokens - next, 0, Kernels().width))};
}

// y = x W for every token; `rows` of W^T are split too when there are few tiles.
bool MultiplyAll(ffi::ThreadPool& pool, const Matrix& x, const Compressed& w, const float* values,
                 int64_t tokens, const Matrix& y) {
  const TileKernels& kernels = Kernels();
  const int64_t tiles = (tokens + kernels.width - 1) / kernels.width;
  if (tiles == 0 || w.rows == 0) return true;
  const int64_t row_blocks = (w.rows + kRowBlock - 1) / kRowBlock;
  const int64_t splits = std::min(row_blocks, std::max<int64_t>(1, 2 * pool.num_threads() / tiles));
  std::atomic<bool> ok{true};
  ParallelFor(pool, tiles * splits, [&](int64_t item) {
    const int64_t first = item / splits * kernels.width, split = item % splits;
    const int count = static_cast<int>(std::min<int64_t>(kernels.width, tokens - first));
    Scratch scratch(sizeof(float) * (TileFloats(x.columns) + kRowBlock * kernels.width));
    if (!scratch.ok()) {
      ok = false;
      return;
    }
    float* sums = scratch.floats();
    float* tile = sums + kRowBlock * kernels.width;
    kernels.pack(x, first, count, tile);
    kernels.multiply(w, values, tile, first, count, row_blocks * split / splits * kRowBlock,
                     std::min(w.rows, row_blocks * (split + 1) / splits * kRowBlock), sums, y,
                     splits == 1 ? After(x, first, pool.num_threads(), tokens) : Ahead{x, 0, 0});
  });
  return ok;
}

// values in the order of the transposed pattern.
void Permute(ffi::ThreadPool& pool, const float* values, const int32_t* order, int64_t nnz,
             float* out) {
  constexpr int64_t kChunk = 1 << 15;
  ParallelFor(pool, (nnz + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(nnz, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) out[i] = values[order[i]];
  });
}

// The part of a gradient call that one thread owns: tiles [begin, end).
struct GradientTask {
  const Matrix& x;
  const Matrix& dy;
  const Compressed& w;
  const Compressed* transposed;  // nullptr: no dx
  const float* transposed_values;
  const Matrix* dx;
  int64_t tokens;
};

bool GradientTiles(const GradientTask& task, int64_t begin, int64_t end, float* dvalues) {
  const TileKernels& kernels = Kernels();
  const size_t sums = kRowBlock * kernels.width, x_floats = TileFloats(task.x.columns);
  Scratch scratch(sizeof(float) * (sums + x_floats + TileFloats(task.dy.columns)));
  if (!scratch.ok()) return false;
  float* x_tile = scratch.floats() + sums;
  float* dy_tile = x_tile + x_floats;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * kernels.width;
    const int count = static_cast<int>(std::min<int64_t>(kernels.width, task.tokens - first));
    kernels.pack(task.dy, first, count, dy_tile);
    if (task.transposed != nullptr) {
      kernels.multiply(*task.transposed, task.transposed_values, dy_tile, first, count, 0,
                       task.transposed->rows, scratch.floats(), *task.dx,
                       Ahead{task.x, first, count});
    }
    kernels.pack(task.x, first, count, x_tile);
    kernels.dot(task.w, x_tile, dy_tile, count, dvalues, After(task.dy, first, 1, task.tokens));
  }
  return true;
}

bool GradientAll(ffi::ThreadPool& pool, const GradientTask& task, int64_t nnz, float* dvalues) {
  const TileKernels& kernels = Kernels();
  const int64_t tiles = (task.tokens + kernels.width - 1) / kernels.width;
  const int64_t parts = std::max<int64_t>(1, std::min(pool.num_threads(), tiles));
  const int64_t stride = (nnz + kernels.lanes + 15) / 16 * 16;
  Scratch partial(sizeof(float) * stride * parts);
  if (!partial.ok()) return false;
  std::atomic<bool> ok{true};
  ParallelFor(pool, parts, [&](int64_t part) {
    float* mine = partial.floats() + part * stride;
    std::memset(mine, 0, sizeof(float) * stride);
    if (!GradientTiles(task, tiles * part / parts, tiles * (part + 1) / parts, mine)) ok = false;
  });
  constexpr int64_t kChunk = 1 << 15;
  ParallelFor(pool, (nnz + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(nnz, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      float sum = partial.floats()[i];
      for (int64_t part = 1; part < parts; ++part) sum += partial.floats()[part * stride + i];
      dvalues[i] = sum;
    }
  });
  return ok;
}

ffi::Error Invalid(const char* what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string("sparse_dot: ") + what);
}
ffi::Error Finish(bool ok) {
  return ok ? ffi::Error::Success()
            : ffi::Error(ffi::ErrorCode::kResourceExhausted, "sparse_dot: no memory for scratch");
}

// Rows and columns of an activation, which every handler checks before it reads one.
int64_t RowsOf(const ffi::AnyBuffer& x) { return x.dimensions().size() == 2 ? x.dimensions()[0] : -1; }
int64_t ColumnsOf(const ffi::AnyBuffer& x) { return x.dimensions().size() == 2 ? x.dimensions()[1] : -1; }
int64_t LinesOf(const ffi::Buffer<ffi::S32>& pointers) {
  return static_cast<int64_t>(pointers.element_count()) - 1;
}

// y[T, N] = x[T, K] W.
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::F32> values,
                    ffi::AnyBuffer indices, ffi::Buffer<ffi::S32> pointers,
                    ffi::Result<ffi::AnyBuffer> y) {
  if (!IsFloat(x.element_type()) || !IsFloat(y->element_type())) return Invalid("dtype of x or y");
  std::string wrong = Wrong(pool, indices, pointers, values.element_count(), ColumnsOf(x));
  if (wrong.empty() && !IsMatrix(*y, RowsOf(x), LinesOf(pointers))) wrong = "shapes of x and y";
  if (!wrong.empty()) return BadPattern(wrong);
  Walk walk(pool, indices, pointers, x.dimensions()[1]);
  if (!walk.ok()) return Finish(false);
  return Finish(MultiplyAll(pool, AsMatrix(x), walk.get(), values.typed_data(), x.dimensions()[0],
                            AsMatrix(*y)));
}

// dx[T, K] = dy[T, N] W^T, from the transposed pattern and the order of values in it.
ffi::Error InputGradient(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::Buffer<ffi::F32> values,
                         ffi::AnyBuffer indices, ffi::Buffer<ffi::S32> pointers,
                         ffi::Buffer<ffi::S32> order, ffi::Result<ffi::AnyBuffer> dx) {
  if (!IsFloat(dy.element_type()) || !IsFloat(dx->element_type())) return Invalid("dtype of dy or dx");
  const int64_t nnz = values.element_count();
  std::string wrong = Wrong(pool, indices, pointers, order, nnz, ColumnsOf(dy));
  if (wrong.empty() && !IsMatrix(*dx, RowsOf(dy), LinesOf(pointers))) wrong = "shapes of dy and dx";
  if (!wrong.empty()) return BadPattern(wrong);
  Scratch permuted(sizeof(float) * nnz);
  Walk walk(pool, indices, pointers, dy.dimensions()[1]);
  if (!walk.ok() || !permuted.ok()) return Finish(false);
  Permute(pool, values.typed_data(), order.typed_data(), nnz, permuted.floats());
  return Finish(MultiplyAll(pool, AsMatrix(dy), walk.get(), permuted.floats(), dy.dimensions()[0],
                            AsMatrix(*dx)));
}

// dvalues[j] = sum_t x[t, k_j] dy[t, n_j].
ffi::Error WeightGradient(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                          ffi::AnyBuffer indices, ffi::Buffer<ffi::S32> pointers,
                          ffi::ResultBuffer<ffi::F32> dvalues) {
  if (!IsFloat(x.element_type()) || !IsFloat(dy.element_type())) return Invalid("dtype of x or dy");
  std::string wrong = Wrong(pool, indices, pointers, dvalues->element_count(), ColumnsOf(x));
  if (wrong.empty() && !IsMatrix(dy, RowsOf(x), LinesOf(pointers))) wrong = "shapes of x and dy";
  if (!wrong.empty()) return BadPattern(wrong);
  Walk walk(pool, indices, pointers, x.dimensions()[1]);
  if (!walk.ok()) return Finish(false);
  const Matrix x_matrix = AsMatrix(x), dy_matrix = AsMatrix(dy);
  const GradientTask task{x_matrix, dy_matrix, walk.get(), nullptr, nullptr, nullptr, x.dimensions()[0]};
  return Finish(GradientAll(pool, task, dvalues->element_count(), dvalues->typed_data()));
}

// Both gradients, packing dy once.
ffi::Error Gradients(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                     ffi::Buffer<ffi::F32> values, ffi::AnyBuffer indices,
                     ffi::Buffer<ffi::S32> pointers, ffi::AnyBuffer t_indices,
                     ffi::Buffer<ffi::S32> t_pointers, ffi::Buffer<ffi::S32> order,
                     ffi::Result<ffi::AnyBuffer> dx, ffi::ResultBuffer<ffi::F32> dvalues) {
  if (!IsFloat(x.element_type()) || !IsFloat(dy.element_type()) || !IsFloat(dx->element_type())) {
    return Invalid("dtype of x, dy or dx");
  }
  const int64_t nnz = values.element_count();
  std::string wrong = Wrong(pool, indices, pointers, nnz, ColumnsOf(x));
  if (wrong.empty()) wrong = Wrong(pool, t_indices, t_pointers, order, nnz, ColumnsOf(dy));
  if (wrong.empty() && (!IsMatrix(dy, RowsOf(x), LinesOf(pointers)) ||
                        !IsMatrix(x, RowsOf(dy), LinesOf(t_pointers)) ||
                        !IsMatrix(*dx, RowsOf(x), ColumnsOf(x)) ||
                        static_cast<int64_t>(dvalues->element_count()) != nnz)) {
    wrong = "shapes of x, dy and the gradients";
  }
  if (!wrong.empty()) return BadPattern(wrong);
  Scratch permuted(sizeof(float) * nnz);
  Walk walk(pool, indices, pointers, x.dimensions()[1]);
  Walk t_walk(pool, t_indices, t_pointers, dy.dimensions()[1]);
  if (!walk.ok() || !t_walk.ok() || !permuted.ok()) return Finish(false);
  Permute(pool, values.typed_data(), order.typed_data(), nnz, permuted.floats());
  const Matrix x_matrix = AsMatrix(x), dy_matrix = AsMatrix(dy), dx_matrix = AsMatrix(*dx);
  const GradientTask task{x_matrix,       dy_matrix,          walk.get(),       &t_walk.get(),
                          permuted.floats(), &dx_matrix, x.dimensions()[0]};
  return Finish(GradientAll(pool, task, nnz, dvalues->typed_data()));
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_multiply, wafer::Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_input_gradient, wafer::InputGradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_weight_gradient, wafer::WeightGradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_gradients, wafer::Gradients,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
