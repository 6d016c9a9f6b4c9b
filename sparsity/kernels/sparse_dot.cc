// y = x W and its gradients for a W kept in compressed form, as XLA FFI handlers for the CPU.
//
// The token axis is cut into tiles (see tile.h). Output columns of a tile are independent, so y and
// dx do not depend on how tiles meet threads. dW sums over tokens: each thread of the pool owns a
// fixed range of tiles and the partial sums are added in order, so a run repeats bit for bit on the
// same number of threads.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
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

// Values in the order of the slots of W^T's walk.
Phase Ordering(const Forward& w, const float* values, int64_t nnz, float* ordered) {
  return ForSegments(w, [=](const Slice* slice, const Slice* end, int32_t* starts) {
    Kernels().fill(slice, end, starts, values, nnz, ordered);
  });
}

Form FormOf(const Matrix& x) { return x.bf16 ? Form::kHalves : Form::kFloats; }

// The tile that starts at token `first`.
Ahead TileAt(const Matrix& x, int64_t first, int64_t tokens) {
  return {x, first, static_cast<int>(std::clamp<int64_t>(tokens - first, 0, Kernels().width))};
}

// One product of some tokens: y = x W + bias. Its factor has no tile yet.
struct Product {
  Factor factor;
  const float* bias;
  Matrix y;
};

// Products of the same x for every token. A thread takes neighbouring tiles, so that threads write
// to different pages; the groups of a weight are split, too, where there are few tiles. `phases` put
// the values into the order of the slots.
bool MultiplyAll(ffi::ThreadPool& pool, const Matrix& x, const std::vector<Product>& products,
                 std::vector<Phase> phases, int64_t tokens) {
  const TileKernels& kernels = Kernels();
  const int64_t tiles = (tokens + kernels.width - 1) / kernels.width;
  int64_t groups = 0, group = 0;
  for (const Product& product : products) {
    groups = std::max(groups, product.factor.walk.groups);
    group = std::max(group, product.factor.walk.group);
  }
  if (tiles == 0 || groups == 0) return true;
  const int64_t shares = std::min(tiles, 4 * pool.num_threads());
  const int64_t splits = std::min(groups, std::max<int64_t>(1, 2 * pool.num_threads() / tiles));
  std::atomic<bool> ok{true};
  phases.push_back({shares * splits, [&](int64_t item) {
    const int64_t share = item / splits, split = item % splits;
    Scratch scratch(sizeof(float) * (TileFloats(x.columns) + (group + 1) * kernels.width));
    if (!scratch.ok()) {
      ok = false;
      return;
    }
    float* sums = scratch.floats();
    float* tile = sums + (group + 1) * kernels.width;
    const int64_t end = tiles * (share + 1) / shares;
    for (int64_t t = tiles * share / shares; t < end; ++t) {
      const int64_t first = t * kernels.width;
      const int count = TileAt(x, first, tokens).tokens;
      kernels.pack(x, first, count, FormOf(x), tile, nullptr);
      int64_t next = t + 1 < end ? first + kernels.width : tokens;
      for (const Product& product : products) {
        const Factor factor{product.factor.walk, product.factor.values, tile};
        const int64_t from = factor.walk.groups * split / splits;
        const int64_t to = factor.walk.groups * (split + 1) / splits;
        if (from == to) continue;
        kernels.multiply(&factor, 1, x.bf16, first, count, from, to, product.bias, sums, product.y,
                         TileAt(x, next, tokens));
        next = tokens;  // asked for
      }
    }
  }});
  ParallelPhases(pool, std::move(phases));
  return ok;
}

// A weight whose gradients are wanted.
struct Part {
  Matrix dy;
  const Forward* w;
  const Checked* transposed;       // null: that of x is not wanted
  const float* transposed_values;  // in the order of its slots
  float* dvalues;
  int64_t nnz;
  float* d_bias;                   // null: not wanted
  int64_t slots = 0, totals = 0;   // where they begin in what a thread adds up
};

// The gradients of products of the same x.
struct Gradient {
  const Matrix& x;
  std::vector<Part> parts;
  const Matrix* dx;
  int64_t tokens;
  std::vector<Phase> before;  // what orders the values
};

// What one thread owns: tokens [begin, end).
bool GradientTiles(const Gradient& task, int64_t begin, int64_t end, float* own) {
  const TileKernels& kernels = Kernels();
  const bool panels = std::any_of(task.parts.begin(), task.parts.end(),
                                  [](const Part& part) { return part.w->panels; });
  const Form form = panels ? Form::kFloats : FormOf(task.x);
  const int64_t group = task.dx == nullptr ? 0 : task.parts[0].transposed->walk.group;
  const size_t sums = (group + 1) * kernels.width;
  size_t floats = sums + TileFloats(task.x.columns);
  for (const Part& part : task.parts) floats += TileFloats(part.dy.columns);
  Scratch scratch(sizeof(float) * floats);
  if (!scratch.ok()) return false;
  float* x_tile = scratch.floats() + sums;
  std::vector<Factor> factors;
  float* at = x_tile + TileFloats(task.x.columns);
  for (const Part& part : task.parts) {
    const Walk walk = part.transposed == nullptr ? Walk{} : part.transposed->walk;
    factors.push_back({walk, part.transposed_values, at});
    at += TileFloats(part.dy.columns);
    if (part.d_bias != nullptr) std::fill_n(own + part.totals, part.dy.columns, 0.0f);
  }
  for (int64_t first = begin; first < end; first += kernels.width) {
    const Ahead x = TileAt(task.x, first, end);
    for (size_t i = 0; i < factors.size(); ++i) {
      const Part& part = task.parts[i];
      kernels.pack(part.dy, first, x.tokens, form, const_cast<float*>(factors[i].tile),
                   part.d_bias == nullptr ? nullptr : own + part.totals);
    }
    if (task.dx != nullptr) {
      kernels.multiply(factors.data(), static_cast<int>(factors.size()), form == Form::kHalves,
                       first, x.tokens, 0, factors[0].walk.groups, nullptr, scratch.floats(),
                       *task.dx, x);
    }
    for (size_t i = 0; i < factors.size(); ++i) {
      const Part& part = task.parts[i];
      const Form x_form = part.w->panels ? Form::kPanels : form;
      if (i == 0 || part.w->panels != task.parts[i - 1].w->panels) {
        kernels.pack(task.x, first, x.tokens, x_form, x_tile, nullptr);
      }
      kernels.dot(part.w->walk, x_tile, factors[i].tile, x_form, x.tokens, first == begin,
                  own + part.slots, TileAt(part.dy, first + kernels.width, end));
    }
  }
  return true;
}

bool GradientAll(ffi::ThreadPool& pool, Gradient task) {
  const TileKernels& kernels = Kernels();
  const int64_t tiles = (task.tokens + kernels.width - 1) / kernels.width;
  const int64_t shares = std::min(pool.num_threads(), tiles);
  int64_t stride = 0;
  const auto room = [&stride](int64_t floats) {
    stride += (floats + 15) / 16 * 16;
    return stride - (floats + 15) / 16 * 16;
  };
  for (Part& part : task.parts) {
    const int64_t used = tiles == 0 ? 0 : part.w->used;
    std::memset(part.dvalues + used, 0, sizeof(float) * (part.nnz - used));  // slack has no gradient
    part.slots = room(part.w->slots + kSlotsBehind);
    part.totals = part.d_bias == nullptr ? 0 : room(part.dy.columns);
    if (part.d_bias != nullptr) std::fill_n(part.d_bias, part.dy.columns, 0.0f);
  }
  if (tiles == 0) return true;
  Scratch partial(sizeof(float) * stride * shares);
  if (!partial.ok()) return false;
  const float* sums = partial.floats();
  std::atomic<bool> ok{true};
  std::vector<Phase> phases = task.before;
  const auto start = [&](int64_t share) {  // every share's last tile may be a narrow one
    return share == shares ? task.tokens : task.tokens * share / shares / kernels.lanes * kernels.lanes;
  };
  phases.push_back({shares, [&](int64_t share) {
                      float* own = partial.floats() + share * stride;
                      if (!GradientTiles(task, start(share), start(share + 1), own)) ok = false;
                    }});
  for (const Part& part : task.parts) {
    float* dvalues = part.dvalues;
    const float* slots = sums + part.slots;
    phases.push_back(ForSegments(*part.w, [=](const Slice* slice, const Slice* end, int32_t* starts) {
      Kernels().sum(slice, end, starts, slots, stride, shares, dvalues);
    }));
    if (part.d_bias == nullptr) continue;
    phases.push_back({1, [=](int64_t) {
                        for (int64_t share = 0; share < shares; ++share) {
                          const float* totals = sums + share * stride + part.totals;
                          for (int64_t i = 0; i < part.dy.columns; ++i) part.d_bias[i] += totals[i];
                        }
                      }});
  }
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

// The bias of a weight with this many outputs, which may have none.
bool IsBias(const ffi::Buffer<ffi::F32>& bias, int64_t outputs) {
  const int64_t count = bias.element_count();
  return count == 0 || count == outputs;
}
template <typename Buffer>
float* BiasOf(const Buffer& bias) {
  return bias.element_count() == 0 ? nullptr : bias.typed_data();
}

// y[T, N] = x[T, K] W + bias for each weight: its values, bias, pointers, slices and offsets.
ffi::Error Multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::RemainingArgs weights,
                    ffi::RemainingRets results) {
  const int64_t tokens = RowsOf(x);
  if (!IsFloat(x.element_type()) || tokens < 0) return Invalid("dtype or shape of x");
  if (results.size() == 0 || weights.size() != 5 * results.size()) return Invalid("operands");
  std::deque<Forward> checked;
  std::deque<Scratch> ordered;
  std::vector<Product> products;
  std::vector<Phase> phases;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto values = weights.get<ffi::Buffer<ffi::F32>>(5 * i);
    const auto bias = weights.get<ffi::Buffer<ffi::F32>>(5 * i + 1);
    const auto pointers = weights.get<ffi::Buffer<ffi::S32>>(5 * i + 2);
    const auto slices = weights.get<ffi::Buffer<ffi::S32>>(5 * i + 3);
    const auto offsets = weights.get<ffi::Buffer<ffi::U8>>(5 * i + 4);
    auto y = results.get<ffi::AnyBuffer>(i);
    if (!values || !bias || !pointers || !slices || !offsets || !y) {
      return Invalid("dtype of values, bias or pattern");
    }
    const int64_t rows = ColumnsOf(**y), nnz = values->element_count();
    if ((*y)->element_type() != x.element_type() || !IsMatrix(**y, tokens, rows) ||
        !IsBias(*bias, rows)) {
      return Invalid("shapes of x, y and bias");
    }
    const Forward& w =
        checked.emplace_back(pool, *pointers, *slices, *offsets, nnz, rows, ColumnsOf(x));
    if (!w.wrong.empty()) return BadPattern(w.wrong);
    const Scratch& slots = ordered.emplace_back(sizeof(float) * w.slots);
    if (!slots.ok()) return Finish(false);
    TakeHugePages(**y);
    phases.push_back(Ordering(w, values->typed_data(), nnz, slots.floats()));
    products.push_back({{w.walk, slots.floats(), nullptr}, BiasOf(*bias), AsMatrix(**y)});
  }
  return Finish(MultiplyAll(pool, AsMatrix(x), products, std::move(phases), tokens));
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
      MultiplyAll(pool, AsMatrix(dy), {{{t.walk, ordered.floats(), nullptr}, nullptr, AsMatrix(*dx)}},
                  {order}, tokens);
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
  const Matrix x_matrix = AsMatrix(x);
  const Part part{AsMatrix(dy), &w, nullptr, nullptr, dvalues->typed_data(), nnz, nullptr};
  return Finish(GradientAll(pool, {x_matrix, {part}, nullptr, tokens, {}}));
}

// dx, the sum over all weights, and of each the gradients of values and bias. A weight is its dy,
// values, indices, pointers, slices, offsets, and its transpose's slices and offsets; the gradient
// of a bias has no elements where there is none.
ffi::Error Gradients(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::RemainingArgs weights,
                     ffi::Result<ffi::AnyBuffer> dx, ffi::RemainingRets results) {
  const int64_t tokens = RowsOf(x), inputs = ColumnsOf(x);
  if (!IsFloat(x.element_type()) || dx->element_type() != x.element_type()) {
    return Invalid("dtype of x or dx");
  }
  if (tokens < 0 || !IsMatrix(*dx, tokens, inputs)) return Invalid("shapes of x and dx");
  const size_t count = results.size() / 2;
  if (count == 0 || results.size() != 2 * count || weights.size() != 8 * count) {
    return Invalid("operands");
  }
  std::deque<Forward> forward;
  std::deque<Checked> transposed;
  std::deque<Scratch> ordered;
  std::atomic<bool> fits{true};
  const Matrix x_matrix = AsMatrix(x), dx_matrix = AsMatrix(*dx);
  Gradient task{x_matrix, {}, &dx_matrix, tokens, {}};
  for (size_t i = 0; i < count; ++i) {
    const auto dy = weights.get<ffi::AnyBuffer>(8 * i);
    const auto values = weights.get<ffi::Buffer<ffi::F32>>(8 * i + 1);
    const auto indices = weights.get<ffi::AnyBuffer>(8 * i + 2);
    const auto pointers = weights.get<ffi::Buffer<ffi::S32>>(8 * i + 3);
    const auto slices = weights.get<ffi::Buffer<ffi::S32>>(8 * i + 4);
    const auto offsets = weights.get<ffi::Buffer<ffi::U8>>(8 * i + 5);
    const auto t_slices = weights.get<ffi::Buffer<ffi::S32>>(8 * i + 6);
    const auto t_offsets = weights.get<ffi::Buffer<ffi::U8>>(8 * i + 7);
    auto dvalues = results.get<ffi::Buffer<ffi::F32>>(2 * i);
    auto d_bias = results.get<ffi::Buffer<ffi::F32>>(2 * i + 1);
    if (!dy || !values || !indices || !pointers || !slices || !offsets || !t_slices || !t_offsets ||
        !dvalues || !d_bias || dy->element_type() != x.element_type()) {
      return Invalid("dtype of dy, values or pattern");
    }
    const int64_t nnz = values->element_count(), outputs = ColumnsOf(*dy);
    if (!IsMatrix(*dy, tokens, outputs) || !IsBias(**d_bias, outputs) ||
        static_cast<int64_t>((*dvalues)->element_count()) != nnz) {
      return Invalid("shapes of x, dy and the gradients");
    }
    const std::string wrong = Wrong(pool, *indices, *pointers, nnz, inputs);
    if (!wrong.empty()) return BadPattern(wrong);
    const Forward& w =
        forward.emplace_back(pool, *pointers, *slices, *offsets, nnz, outputs, inputs);
    if (!w.wrong.empty()) return BadPattern(w.wrong);
    const Checked& t = transposed.emplace_back(pool, *t_slices, *t_offsets, inputs, outputs);
    if (!t.wrong.empty()) return Transposed(t.wrong);
    const Scratch& slots = ordered.emplace_back(sizeof(float) * (t.slots + 1));
    if (!slots.ok()) return Finish(false);
    task.before.push_back(Ordering(t, AsCompressed(*indices, *pointers), outputs,
                                   values->typed_data(), slots.floats(), &fits));
    task.parts.push_back({AsMatrix(*dy), &w, &t, slots.floats(), (*dvalues)->typed_data(), nnz,
                          BiasOf(**d_bias)});
  }
  TakeHugePages(*dx);
  const bool ok = GradientAll(pool, std::move(task));
  return fits ? Finish(ok) : Transposed(kOtherEntries);
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_multiply, wafer::Multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets());

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
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .RemainingRets());
