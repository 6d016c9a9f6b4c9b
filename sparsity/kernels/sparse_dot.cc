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

// Compressed rows of W^T whose indices and pointers were checked.
struct Compressed {
  const void* indices;
  bool wide;
  const int32_t* pointers;
};

// A walk that was checked, and what every product needs to know of it.
struct Checked {
  Walk walk{};
  std::string wrong;
  int64_t slots = 0;
  bool panels = false;

  Checked(ffi::ThreadPool& pool, const ffi::Buffer<ffi::S32>& slices,
          const ffi::Buffer<ffi::U8>& offsets, int64_t rows, int64_t columns)
      : walk(AsWalk(slices.typed_data(), offsets.typed_data(), rows, columns)),
        slots(offsets.element_count()) {
    const auto sizes = slices.dimensions();
    if (sizes.size() != 2 || sizes[1] != sizeof(Slice) / sizeof(int32_t)) {
      wrong = "slices are not rows of four words";
      return;
    }
    wrong = WrongWalk(pool, walk, sizes[0], slots, &panels);
    panels = panels && columns % kPanel == 0;
  }
};

// A walk of W^T, whose values lie as its pointers say.
struct Forward : Checked {
  Starts starts;
  int64_t used = 0;  // values that it names

  Forward(ffi::ThreadPool& pool, const ffi::Buffer<ffi::S32>& pointers,
          const ffi::Buffer<ffi::S32>& slices, const ffi::Buffer<ffi::U8>& offsets, int64_t nnz,
          int64_t rows, int64_t columns)
      : Checked(pool, slices, offsets, rows, columns), starts(walk) {
    if (wrong.empty()) wrong = WrongPointers(pointers, nnz);
    if (wrong.empty() && (static_cast<int64_t>(pointers.element_count()) != rows + 1 ||
                          !starts.Fill(pool, walk, pointers.typed_data()))) {
      wrong = "the slices do not have as many values of each output as the pointers";
    }
    if (wrong.empty()) used = pointers.typed_data()[rows];
  }
};

// Calls work(first slice, end, where the values of its outputs begin) for every segment of a walk.
template <typename Work>
Phase ForSegments(const Forward& w, Work work) {
  const Walk& walk = w.walk;
  const Starts& starts = w.starts;
  return {walk.groups * starts.parts, [=, &walk, &starts](int64_t item) {
            const int64_t per = walk.group / kSlice, group = item / starts.parts;
            const int64_t begin = item % starts.parts * starts.blocks;
            const int64_t end = std::min(walk.blocks, begin + starts.blocks);
            if (begin >= end) return;
            const auto first = starts.places.begin() + item * (walk.group + 1);
            std::vector<int32_t> at(first, first + walk.group + 1);
            for (int64_t b = begin; b < end; ++b) {
              const Slice* slice = walk.slices + (group * walk.blocks + b) * per;
              work(slice, slice + per, at.data());
            }
          }};
}

// Values in the order of the slots of W^T's walk.
Phase Ordering(const Forward& w, const float* values, int64_t nnz, float* ordered) {
  return ForSegments(w, [=](const Slice* slice, const Slice* end, int32_t* starts) {
    Kernels().fill(slice, end, starts, values, nnz, ordered);
  });
}

// Those of block `b` of W's walk: of kBlock columns of W. False where the walk does not have the
// entries of these columns. `ordered` has room for one value behind the slots.
template <typename Index>
bool OrderBlock(const Walk& walk, int64_t b, int64_t columns, const Index* indices,
                const int32_t* pointers, const float* values, uint32_t slots, float* ordered) {
  const int64_t per = walk.group / kSlice;
  std::vector<uint32_t> next(walk.groups * walk.group);  // slot of each output's next value
  const auto for_outputs = [&](const auto& visit) {
    for (int64_t g = 0; g < walk.groups; ++g) {
      const Slice* slice = walk.slices + (g * walk.blocks + b) * per;
      for (const Slice* end = slice + per; slice < end; ++slice) {
        for (int c = 0; c < kSlice; ++c) {
          const int64_t row = slice->rows[c] & kRowBits;
          if (row < walk.group) visit(*slice, c, next[g * walk.group + row]);
        }
      }
    }
  };
  for_outputs([&](const Slice& slice, int c, uint32_t& slot) {
    slot = slice.slots + c;
    for (int j = slice.counts[c]; j < slice.counts[0]; ++j) {
      ordered[slice.slots + kSlice * j + c] = -0.0f;  // changes no sum
    }
  });
  for (int64_t i = pointers[b * kBlock]; i < pointers[std::min(columns, (b + 1) * kBlock)]; ++i) {
    uint32_t& slot = next[indices[i]];
    ordered[std::min(slot, slots)] = values[i];
    slot += kSlice;
  }
  bool ok = true;
  for_outputs([&](const Slice& slice, int c, uint32_t slot) {
    ok = ok && slot == static_cast<uint32_t>(slice.slots + c + kSlice * slice.counts[c]);
  });
  return ok;
}

// Values in the order of the slots of W's walk; `ok` becomes false where they do not fit.
Phase Ordering(const Checked& t, const Compressed& w, int64_t columns, const float* values,
               float* ordered, std::atomic<bool>* ok) {
  const Walk walk = t.walk;
  const uint32_t slots = static_cast<uint32_t>(t.slots);
  return {walk.rows == 0 ? 0 : walk.blocks, [=](int64_t b) {
            const bool fits =
                w.wide ? OrderBlock(walk, b, columns, static_cast<const int32_t*>(w.indices),
                                    w.pointers, values, slots, ordered)
                       : OrderBlock(walk, b, columns, static_cast<const uint16_t*>(w.indices),
                                    w.pointers, values, slots, ordered);
            if (!fits) *ok = false;
          }};
}

Form FormOf(const Matrix& x) { return x.bf16 ? Form::kHalves : Form::kFloats; }

// The tile that starts at token `first`.
Ahead TileAt(const Matrix& x, int64_t first, int64_t tokens) {
  return {x, first, static_cast<int>(std::clamp<int64_t>(tokens - first, 0, Kernels().width))};
}

// y = x W for every token. A thread takes neighbouring tiles, so that threads write to different
// pages; the groups of W are split, too, where there are few tiles. `order` puts the values into
// `ordered`.
bool MultiplyAll(ffi::ThreadPool& pool, const Matrix& x, const Walk& walk, const Phase& order,
                 const float* ordered, int64_t tokens, const Matrix& y) {
  const TileKernels& kernels = Kernels();
  const int64_t tiles = (tokens + kernels.width - 1) / kernels.width;
  if (tiles == 0 || walk.rows == 0) return true;
  const int64_t shares = std::min(tiles, 4 * pool.num_threads());
  const int64_t splits =
      std::min(walk.groups, std::max<int64_t>(1, 2 * pool.num_threads() / tiles));
  std::atomic<bool> ok{true};
  ParallelPhases(pool, {order, {shares * splits, [&](int64_t item) {
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
      kernels.multiply(walk, ordered, tile, x.bf16, first, count,
                       walk.groups * split / splits, walk.groups * (split + 1) / splits, sums, y,
                       TileAt(x, next, tokens));
    }
  }}});
  return ok;
}

// The gradients of a call; without `transposed` that of the weight alone.
struct Gradient {
  const Matrix& x;
  const Matrix& dy;
  const Forward& w;
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
  phases.push_back(ForSegments(task.w, [=](const Slice* slice, const Slice* end, int32_t* starts) {
    Kernels().sum(slice, end, starts, slots, stride, parts, dvalues);
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

ffi::Error Transposed(const std::string& wrong) { return BadPattern("transposed: " + wrong); }
constexpr char kOtherEntries[] = "the walk does not have the entries that the indices name";

Compressed AsCompressed(const ffi::AnyBuffer& indices, const ffi::Buffer<ffi::S32>& pointers) {
  return {indices.untyped_data(), indices.element_type() != ffi::DataType::U16,
          pointers.typed_data()};
}

// y[T, N] = x[T, K] W.
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::F32> values,
                    ffi::Buffer<ffi::S32> pointers, ffi::Buffer<ffi::S32> slices,
                    ffi::Buffer<ffi::U8> offsets, ffi::Result<ffi::AnyBuffer> y) {
  if (!IsFloat(x.element_type()) || !IsFloat(y->element_type())) return Invalid("dtype of x or y");
  const int64_t tokens = RowsOf(x), rows = ColumnsOf(*y), nnz = values.element_count();
  if (tokens < 0 || !IsMatrix(*y, tokens, rows)) return Invalid("shapes of x and y");
  const Forward w(pool, pointers, slices, offsets, nnz, rows, ColumnsOf(x));
  if (!w.wrong.empty()) return BadPattern(w.wrong);
  Scratch ordered(sizeof(float) * w.slots);
  if (!ordered.ok()) return Finish(false);
  TakeHugePages(*y);
  return Finish(MultiplyAll(pool, AsMatrix(x), w.walk,
                            Ordering(w, values.typed_data(), nnz, ordered.floats()),
                            ordered.floats(), tokens, AsMatrix(*y)));
}

// dx[T, K] = dy[T, N] W^T, by the walk of W.
ffi::Error InputGradient(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::Buffer<ffi::F32> values,
                         ffi::AnyBuffer indices, ffi::Buffer<ffi::S32> pointers,
                         ffi::Buffer<ffi::S32> t_slices, ffi::Buffer<ffi::U8> t_offsets,
                         ffi::Result<ffi::AnyBuffer> dx) {
  if (!IsFloat(dy.element_type()) || !IsFloat(dx->element_type())) return Invalid("dtype of dy or dx");
  const int64_t tokens = RowsOf(dy), inputs = ColumnsOf(*dx), outputs = ColumnsOf(dy);
  if (tokens < 0 || !IsMatrix(*dx, tokens, inputs)) return Invalid("shapes of dy and dx");
  const std::string wrong = Wrong(pool, indices, pointers, values.element_count(), inputs);
  if (!wrong.empty()) return BadPattern(wrong);
  if (static_cast<int64_t>(pointers.element_count()) != outputs + 1) return Invalid("shape of dy");
  const Checked t(pool, t_slices, t_offsets, inputs, outputs);
  if (!t.wrong.empty()) return Transposed(t.wrong);
  Scratch ordered(sizeof(float) * (t.slots + 1));
  if (!ordered.ok()) return Finish(false);
  TakeHugePages(*dx);
  std::atomic<bool> fits{true};
  const Phase order = Ordering(t, AsCompressed(indices, pointers), outputs, values.typed_data(),
                               ordered.floats(), &fits);
  const bool ok =
      MultiplyAll(pool, AsMatrix(dy), t.walk, order, ordered.floats(), tokens, AsMatrix(*dx));
  return fits ? Finish(ok) : Transposed(kOtherEntries);
}

// dvalues[j] = sum_t x[t, k_j] dy[t, n_j].
ffi::Error WeightGradient(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                          ffi::Buffer<ffi::S32> pointers, ffi::Buffer<ffi::S32> slices,
                          ffi::Buffer<ffi::U8> offsets, ffi::ResultBuffer<ffi::F32> dvalues) {
  if (!IsFloat(x.element_type()) || dy.element_type() != x.element_type()) {
    return Invalid("dtype of x or dy");
  }
  const int64_t tokens = RowsOf(x), rows = ColumnsOf(dy), nnz = dvalues->element_count();
  if (tokens < 0 || !IsMatrix(dy, tokens, rows)) return Invalid("shapes of x and dy");
  const Forward w(pool, pointers, slices, offsets, nnz, rows, ColumnsOf(x));
  if (!w.wrong.empty()) return BadPattern(w.wrong);
  const Matrix x_matrix = AsMatrix(x), dy_matrix = AsMatrix(dy);
  const Gradient task{x_matrix, dy_matrix, w, nullptr, nullptr, nullptr, tokens, {}};
  return Finish(GradientAll(pool, task, nnz, dvalues->typed_data()));
}

// Both gradients, packing dy once.
ffi::Error Gradients(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                     ffi::Buffer<ffi::F32> values, ffi::AnyBuffer indices,
                     ffi::Buffer<ffi::S32> pointers, ffi::Buffer<ffi::S32> slices,
                     ffi::Buffer<ffi::U8> offsets, ffi::Buffer<ffi::S32> t_slices,
                     ffi::Buffer<ffi::U8> t_offsets, ffi::Result<ffi::AnyBuffer> dx,
                     ffi::ResultBuffer<ffi::F32> dvalues) {
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
  const std::string wrong = Wrong(pool, indices, pointers, nnz, inputs);
  if (!wrong.empty()) return BadPattern(wrong);
  const Forward w(pool, pointers, slices, offsets, nnz, outputs, inputs);
  if (!w.wrong.empty()) return BadPattern(w.wrong);
  const Checked t(pool, t_slices, t_offsets, inputs, outputs);
  if (!t.wrong.empty()) return Transposed(t.wrong);
  Scratch ordered(sizeof(float) * (t.slots + 1));
  if (!ordered.ok()) return Finish(false);
  TakeHugePages(*dx);
  std::atomic<bool> fits{true};
  const Matrix x_matrix = AsMatrix(x), dy_matrix = AsMatrix(dy), dx_matrix = AsMatrix(*dx);
  const Gradient task{x_matrix, dy_matrix, w, &t, ordered.floats(), &dx_matrix, tokens,
                      {Ordering(t, AsCompressed(indices, pointers), outputs, values.typed_data(),
                                ordered.floats(), &fits)}};
  const bool ok = GradientAll(pool, task, nnz, dvalues->typed_data());
  return fits ? Finish(ok) : Transposed(kOtherEntries);
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
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_input_gradient, wafer::InputGradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
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
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_gradients, wafer::Gradients,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
