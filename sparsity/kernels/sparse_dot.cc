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
#include "walks.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;

const TileKernels& Kernels() {
  static const TileKernels& kernels = BestOf(
      wafer_tile_baseline, WAFER_IF_AVX2(wafer_tile_avx2), WAFER_IF_AVX512(wafer_tile_avx512));
  return kernels;
}

// Floats of a tile with this many columns, and of one panel more: the offset of no input is kBlock.
size_t TileFloats(int64_t columns) {
  return static_cast<size_t>(BlocksOf(columns) * (kBlock + 1) + kPanel) * Kernels().width;
}

bool IsFloat(ffi::DataType t) { return t == ffi::DataType::F32 || t == ffi::DataType::BF16; }

Matrix AsMatrix(const ffi::AnyBuffer& buffer) {
  return {buffer.untyped_data(), buffer.dimensions()[1],
          buffer.element_type() == ffi::DataType::BF16};
}

// Asks for huge pages: a fresh page of 4 KiB costs more than the sums that are written to it.
void TakeHugePages(const ffi::AnyBuffer& buffer) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = uintptr_t{1} << 21;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(buffer.untyped_data());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (begin + buffer.size_bytes()) / kHugePage * kHugePage;
  if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

// A walk that was checked, and what every product needs to know of it.
struct Checked {
  Walk walk{};
  std::string wrong;
  int64_t slots = 0, used = 0;
  bool panels = false;

  Checked(ffi::ThreadPool& pool, const ffi::Buffer<ffi::S32>& slices,
          const ffi::Buffer<ffi::U8>& offsets, int64_t nnz, int64_t rows, int64_t columns)
      : walk(AsWalk(slices.typed_data(), offsets.typed_data(), rows, columns)),
        slots(offsets.element_count()) {
    const auto sizes = slices.dimensions();
    if (sizes.size() != 2 || sizes[1] != 8) {
      wrong = "slices are not rows of eight words";
      return;
    }
    wrong = WrongWalk(pool, walk, sizes[0], slots, nnz, &panels, &used);
    panels = panels && columns % kPanel == 0;
  }
};

// Calls work(first slice, end) for every segment of a walk.
template <typename Work>
Phase ForSegments(const Walk& walk, Work work) {
  const Slice* slices = walk.slices;
  const int64_t per = walk.group / kSlice;
  return {walk.groups * walk.blocks,
          [=](int64_t s) { work(slices + s * per, slices + (s + 1) * per); }};
}

// Values in the order of a walk's slots, in `ordered`; `order`, if any, says where the value of each
// entry lies, and `gathered` is where those values go first.
std::vector<Phase> Ordering(const Checked& w, const float* values, const int32_t* order,
                            int64_t nnz, float* gathered, float* ordered) {
  constexpr int64_t kChunk = 1 << 15;
  std::vector<Phase> phases;
  if (order != nullptr) {
    phases.push_back({(nnz + kChunk - 1) / kChunk, [=](int64_t chunk) {
                        const int64_t end = std::min(nnz, (chunk + 1) * kChunk);
                        for (int64_t i = chunk * kChunk; i < end; ++i) gathered[i] = values[order[i]];
                      }});
  }
  const float* from = order != nullptr ? gathered : values;
  phases.push_back(ForSegments(w.walk, [=](const Slice* slice, const Slice* end) {
    Kernels().fill(slice, end, from, nnz, ordered);
  }));
  return phases;
}

Form FormOf(const Matrix& x) { return x.bf16 ? Form::kHalves : Form::kFloats; }

// The tile that starts at token `first`.
Ahead TileAt(const Matrix& x, int64_t first, int64_t tokens) {
  return {x, first, static_cast<int>(std::clamp<int64_t>(tokens - first, 0, Kernels().width))};
}

// y = x W for every token. A thread takes neighbouring tiles, so that threads write to different
// pages; the groups of W are split, too, where there are few tiles.
bool MultiplyAll(ffi::ThreadPool& pool, const Matrix& x, const Checked& w, const float* values,
                 const int32_t* order, int64_t nnz, int64_t tokens, const Matrix& y) {
  const Walk& walk = w.walk;
  const TileKernels& kernels = Kernels();
  const int64_t tiles = (tokens + kernels.width - 1) / kernels.width;
  if (tiles == 0 || walk.rows == 0) return true;
  const int64_t shares = std::min(tiles, 4 * pool.num_threads());
  const int64_t splits =
      std::min(walk.groups, std::max<int64_t>(1, 2 * pool.num_threads() / tiles));
  Scratch ordered(sizeof(float) * w.slots), gathered(order != nullptr ? sizeof(float) * nnz : 0);
  if (!ordered.ok() || !gathered.ok()) return false;
  std::atomic<bool> ok{true};
  std::vector<Phase> phases =
      Ordering(w, values, order, nnz, gathered.floats(), ordered.floats());
  phases.push_back({shares * splits, [&](int64_t item) {
    const int64_t share = item / splits, split = item % splits;
    Scratch scratch(sizeof(float) * (TileFloats(x.columns) + (walk.group + 1) * kernels.width));
    if (!scratch.ok()) {
      ok = false;
      return;
    }
    float* sums = scratch.floats();
    float* tile = sums + (walk.group + 1) * kernels.width;
    const int64_t end = tiles * (share + 1) / shares;
    for (int64_t t = tiles * share / shares; t < end; ++t) {
      const int64_t first = t * kernels.width;
      const int count = TileAt(x, first, tokens).tokens;
      kernels.pack(x, first, count, FormOf(x), tile);
      const int64_t next = t + 1 < end ? first + kernels.width : tokens;
      kernels.multiply(walk, ordered.floats(), tile, x.bf16, first, count,
                       walk.groups * split / splits, walk.groups * (split + 1) / splits, sums, y,
                       TileAt(x, next, tokens));
    }
  }});
  ParallelPhases(pool, std::move(phases));
  return ok;
}

// The gradients of a call; without `transposed` that of the weight alone.
struct Gradient {
  const Matrix& x;
  const Matrix& dy;
  const Checked& w;
  const Checked* transposed;
  const float* transposed_values;  // in the order of its slots
  const Matrix* dx;
  int64_t tokens;
  std::vector<Phase> before;  // what orders them
};

// The part that one thread owns: tiles [begin, end).
bool GradientTiles(const Gradient& task, int64_t begin, int64_t end, float* slots) {
  const TileKernels& kernels = Kernels();
  const Form dy_form = task.w.panels ? Form::kFloats : FormOf(task.dy);
  const Form x_form = task.w.panels ? Form::kPanels : FormOf(task.x);
  const int64_t group = task.transposed == nullptr ? 0 : task.transposed->walk.group;
  const size_t sums = (group + 1) * kernels.width, x_floats = TileFloats(task.x.columns);
  Scratch scratch(sizeof(float) * (sums + x_floats + TileFloats(task.dy.columns)));
  if (!scratch.ok()) return false;
  float* x_tile = scratch.floats() + sums;
  float* dy_tile = x_tile + x_floats;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * kernels.width;
    const Ahead x = TileAt(task.x, first, task.tokens);
    kernels.pack(task.dy, first, x.tokens, dy_form, dy_tile);
    if (task.transposed != nullptr) {
      const Walk& walk = task.transposed->walk;
      kernels.multiply(walk, task.transposed_values, dy_tile, dy_form == Form::kHalves, first,
                       x.tokens, 0, walk.groups, scratch.floats(), *task.dx, x);
    }
    kernels.pack(task.x, first, x.tokens, x_form, x_tile);
    const int64_t next = tile + 1 < end ? first + kernels.width : task.tokens;
    kernels.dot(task.w.walk, x_tile, dy_tile, x_form, x.tokens, tile == begin, slots,
                TileAt(task.dy, next, task.tokens));
  }
  return true;
}

bool GradientAll(ffi::ThreadPool& pool, const Gradient& task, int64_t nnz, float* dvalues) {
  const TileKernels& kernels = Kernels();
  const int64_t tiles = (task.tokens + kernels.width - 1) / kernels.width;
  const int64_t parts = std::min(pool.num_threads(), tiles);
  const int64_t used = tiles == 0 ? 0 : task.w.used;
  std::memset(dvalues + used, 0, sizeof(float) * (nnz - used));  // slack has no gradient
  if (tiles == 0) return true;
  const int64_t stride = (task.w.slots + 15) / 16 * 16 + kSlotsBehind;
  Scratch partial(sizeof(float) * stride * parts);
  if (!partial.ok()) return false;
  const float* slots = partial.floats();
  std::atomic<bool> ok{true};
  std::vector<Phase> phases = task.before;
  phases.push_back({parts, [&](int64_t part) {
                      float* own = partial.floats() + part * stride;
                      const int64_t begin = tiles * part / parts, end = tiles * (part + 1) / parts;
                      if (!GradientTiles(task, begin, end, own)) ok = false;
                    }});
  phases.push_back(ForSegments(task.w.walk, [=](const Slice* slice, const Slice* end) {
    Kernels().sum(slice, end, slots, stride, parts, dvalues);
  }));
  ParallelPhases(pool, std::move(phases));
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

bool IsOrder(ffi::ThreadPool& pool, const ffi::Buffer<ffi::S32>& order, int64_t nnz) {
  return static_cast<int64_t>(order.element_count()) == nnz &&
         InRange(pool, order.typed_data(), nnz, nnz);
}

// y[T, N] = x[T, K] W.
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::F32> values,
                    ffi::Buffer<ffi::S32> slices, ffi::Buffer<ffi::U8> offsets,
                    ffi::Result<ffi::AnyBuffer> y) {
  if (!IsFloat(x.element_type()) || !IsFloat(y->element_type())) return Invalid("dtype of x or y");
  const int64_t tokens = RowsOf(x), rows = ColumnsOf(*y);
  if (tokens < 0 || !IsMatrix(*y, tokens, rows)) return Invalid("shapes of x and y");
  const Checked w(pool, slices, offsets, values.element_count(), rows, ColumnsOf(x));
  if (!w.wrong.empty()) return BadPattern(w.wrong);
  TakeHugePages(*y);
  return Finish(MultiplyAll(pool, AsMatrix(x), w, values.typed_data(), nullptr,
                            values.element_count(), tokens, AsMatrix(*y)));
}

// dx[T, K] = dy[T, N] W^T, from the walk of the transposed pattern and the order of values in it.
ffi::Error InputGradient(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::Buffer<ffi::F32> values,
                         ffi::Buffer<ffi::S32> order, ffi::Buffer<ffi::S32> slices,
                         ffi::Buffer<ffi::U8> offsets, ffi::Result<ffi::AnyBuffer> dx) {
  if (!IsFloat(dy.element_type()) || !IsFloat(dx->element_type())) return Invalid("dtype of dy or dx");
  const int64_t tokens = RowsOf(dy), rows = ColumnsOf(*dx), nnz = values.element_count();
  if (tokens < 0 || !IsMatrix(*dx, tokens, rows)) return Invalid("shapes of dy and dx");
  if (!IsOrder(pool, order, nnz)) return BadPattern("order does not name the values");
  const Checked w(pool, slices, offsets, nnz, rows, ColumnsOf(dy));
  if (!w.wrong.empty()) return BadPattern("transposed: " + w.wrong);
  TakeHugePages(*dx);
  return Finish(MultiplyAll(pool, AsMatrix(dy), w, values.typed_data(), order.typed_data(), nnz,
                            tokens, AsMatrix(*dx)));
}

// dvalues[j] = sum_t x[t, k_j] dy[t, n_j].
ffi::Error WeightGradient(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                          ffi::Buffer<ffi::S32> slices, ffi::Buffer<ffi::U8> offsets,
                          ffi::ResultBuffer<ffi::F32> dvalues) {
  if (!IsFloat(x.element_type()) || dy.element_type() != x.element_type()) {
    return Invalid("dtype of x or dy");
  }
  const int64_t tokens = RowsOf(x), rows = ColumnsOf(dy), nnz = dvalues->element_count();
  if (tokens < 0 || !IsMatrix(dy, tokens, rows)) return Invalid("shapes of x and dy");
  const Checked w(pool, slices, offsets, nnz, rows, ColumnsOf(x));
  if (!w.wrong.empty()) return BadPattern(w.wrong);
  const Matrix x_matrix = AsMatrix(x), dy_matrix = AsMatrix(dy);
  const Gradient task{x_matrix, dy_matrix, w, nullptr, nullptr, nullptr, tokens, {}};
  return Finish(GradientAll(pool, task, nnz, dvalues->typed_data()));
}

// Both gradients, packing dy once.
ffi::Error Gradients(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                     ffi::Buffer<ffi::F32> values, ffi::Buffer<ffi::S32> order,
                     ffi::Buffer<ffi::S32> slices, ffi::Buffer<ffi::U8> offsets,
                     ffi::Buffer<ffi::S32> t_slices, ffi::Buffer<ffi::U8> t_offsets,
                     ffi::Result<ffi::AnyBuffer> dx, ffi::ResultBuffer<ffi::F32> dvalues) {
  if (!IsFloat(x.element_type()) || dy.element_type() != x.element_type() ||
      !IsFloat(dx->element_type())) {
    return Invalid("dtype of x, dy or dx");
  }
  const int64_t nnz = values.element_count(), tokens = RowsOf(x);
  const int64_t inputs = ColumnsOf(x), outputs = ColumnsOf(dy);
  if (tokens < 0 || !IsMatrix(dy, tokens, outputs) || !IsMatrix(*dx, tokens, inputs) ||
      static_cast<int64_t>(dvalues->element_count()) != nnz) {
    return Invalid("shapes of x, dy and the gradients");
  }
  if (!IsOrder(pool, order, nnz)) return BadPattern("order does not name the values");
  const Checked w(pool, slices, offsets, nnz, outputs, inputs);
  if (!w.wrong.empty()) return BadPattern(w.wrong);
  const Checked t(pool, t_slices, t_offsets, nnz, inputs, outputs);
  if (!t.wrong.empty()) return BadPattern("transposed: " + t.wrong);
  Scratch ordered(sizeof(float) * t.slots), gathered(sizeof(float) * nnz);
  if (!ordered.ok() || !gathered.ok()) return Finish(false);
  TakeHugePages(*dx);
  const Matrix x_matrix = AsMatrix(x), dy_matrix = AsMatrix(dy), dx_matrix = AsMatrix(*dx);
  const Gradient task{
      x_matrix, dy_matrix, w, &t, ordered.floats(), &dx_matrix, tokens,
      Ordering(t, values.typed_data(), order.typed_data(), nnz, gathered.floats(), ordered.floats())};
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
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_input_gradient, wafer::InputGradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_weight_gradient, wafer::WeightGradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_gradients, wafer::Gradients,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
