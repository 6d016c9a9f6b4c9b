// Products of a packed stream with a weight, over the tokens that are there: XLA FFI handlers.
//
// A stream has a static capacity and a number of tokens known only when it runs; rows past it are
// neither read nor multiplied, and come out as 0.
#include <algorithm>
#include <cstring>

#include "product.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;
using ResultF32 = ffi::ResultBuffer<ffi::F32>;

constexpr int64_t kPanels = 16;  // of a task at most: its part of c stays in cache
constexpr int64_t kLines = 64;  // of b, packed by a task
constexpr int64_t kTasks = 16;  // wanted for each thread, so that they end together

const ProductKernels& Kernels() {
  static const ProductKernels& kernels =
      BestOf(wafer_tile_baseline_product, WAFER_IF_AVX2(wafer_tile_avx2_product),
             WAFER_IF_AVX512(wafer_tile_avx512_product));
  return kernels;
}

// A matrix by its element strides.
struct Matrix {
  const float* data;
  int64_t row, column;
};

// c [rows, columns] = a [rows, depth] b [depth, columns] + bias, in two phases, the second in about
// as many tasks as wanted. `column_sums`: also the sums of b's columns, whose lines lie along memory
// then.
class Multiplication {
 public:
  Multiplication(Matrix a, Matrix b, int64_t rows, int64_t depth, int64_t columns, float* c,
                 int64_t wanted, const float* bias, bool column_sums)
      : b_(b),
        packed_(sizeof(float) * depth * columns),
        product_{rows, depth, columns, a.data, a.row, a.column, packed_.floats(), bias, c},
        group_(std::clamp<int64_t>(Blocks() * panels() / wanted, 1, kPanels)),
        sums_(column_sums ? sizeof(float) * packs() * columns : 0),
        has_sums_(column_sums) {}
  bool ok() const { return packed_.ok() && sums_.ok(); }

  int64_t panels() const { return product_.columns / kPanel; }
  int64_t packs() const {
    return b_.column == 1 ? (product_.depth + kLines - 1) / kLines : panels();
  }
  // One panel where its columns lie along memory, else some lines of all panels: memory is read in
  // order, as its prefetchers like it.
  void Pack(int64_t task) const {
    const int64_t depth = product_.depth;
    if (b_.column != 1) {
      Kernels().pack(b_.data + task * kPanel * b_.column, b_.column, depth,
                     packed_.floats() + task * depth * kPanel);
      return;
    }
    const int64_t k = task * kLines;
    float* sums = has_sums_ ? sums_.floats() + task * product_.columns : nullptr;
    Kernels().lines(product_, b_.data + k * b_.row, b_.row, k, std::min(depth - k, kLines),
                    packed_.floats(), sums);
  }
  // Once all is packed.
  void ColumnSums(float* to) const {
    std::fill_n(to, product_.columns, 0.0f);
    for (int64_t task = 0; task < packs(); ++task) {
      const float* sums = sums_.floats() + task * product_.columns;
      for (int64_t n = 0; n < product_.columns; ++n) to[n] += sums[n];
    }
  }
  int64_t tasks() const { return Blocks() * ((panels() + group_ - 1) / group_); }
  void Run(int64_t task) const {
    float scratch[kDepth * kBlockRows];
    const int64_t row = task % Blocks() * kBlockRows, from = task / Blocks() * group_;
    Kernels().block(product_, row, from, std::min(panels(), from + group_), scratch);
  }

 private:
  int64_t Blocks() const { return (product_.rows + kBlockRows - 1) / kBlockRows; }
  Matrix b_;
  Scratch packed_;
  Product product_;
  int64_t group_;  // panels of a task
  Scratch sums_;   // [packs, columns]
  bool has_sums_;
};

ffi::Error NoMemory() {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "native product: no memory for scratch");
}

int64_t Tokens(const S32& count, int64_t capacity) {
  return std::clamp<int64_t>(count.typed_data()[0], 0, capacity);
}

void Clear(float* rows, int64_t from, int64_t capacity, int64_t width) {
  std::memset(rows + from * width, 0, sizeof(float) * (capacity - from) * width);
}

// Whether x [T, in], the weight, the number of tokens, y [T, out] or its gradient and the bias [out],
// or [0] where there is none, fit.
bool Fits(const F32& x, const F32& w, const S32& count, const F32& y, const F32& bias,
          bool transposed) {
  const int64_t biases = bias.element_count();
  const auto tall = x.dimensions(), sizes = w.dimensions(), out = y.dimensions();
  return out.size() == 2 && tall.size() == 2 && sizes.size() == 2 && count.element_count() == 1 &&
         tall[1] == sizes[transposed ? 1 : 0] &&
         out[0] == tall[0] && out[1] == sizes[transposed ? 0 : 1] && sizes[0] % kPanel == 0 && sizes[1] % kPanel == 0 &&
         (biases == 0 || (biases == out[1] && !transposed));
}

ffi::Error Invalid() {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "native product: expected x [T, D], a weight of whole panels of 64, one count");
}

// A weight [in, out], stored so or transposed.
struct Weight {
  int64_t in, out;
  Matrix forward, backward;
  Weight(const F32& w, bool transposed)
      : in(w.dimensions()[transposed ? 1 : 0]), out(w.dimensions()[transposed ? 0 : 1]) {
    const Matrix stored{w.typed_data(), w.dimensions()[1], 1};
    const Matrix turned{w.typed_data(), 1, w.dimensions()[1]};
    forward = transposed ? turned : stored;
    backward = transposed ? stored : turned;
  }
};

const float* BiasOf(const F32& bias) { return bias.element_count() == 0 ? nullptr : bias.typed_data(); }

ffi::Error Forward(ffi::ThreadPool pool, F32 x, F32 w, S32 count, F32 bias, ResultF32 y,
                   bool transposed) {
  if (!Fits(x, w, count, *y, bias, transposed)) return Invalid();
  const Weight weight(w, transposed);
  const int64_t capacity = x.dimensions()[0], tokens = Tokens(count, capacity);
  Clear(y->typed_data(), tokens, capacity, weight.out);
  const Multiplication forward({x.typed_data(), weight.in, 1}, weight.forward, tokens, weight.in,
                               weight.out, y->typed_data(), kTasks * pool.num_threads(),
                               BiasOf(bias), false);
  if (!forward.ok()) return NoMemory();
  ParallelPhases(pool, {{forward.packs(), [&](int64_t j) { forward.Pack(j); }},
                        {forward.tasks(), [&](int64_t task) { forward.Run(task); }}});
  return ffi::Error::Success();
}

ffi::Error Backward(ffi::ThreadPool pool, F32 x, F32 w, S32 count, F32 dy, ResultF32 dx,
                    ResultF32 dw, ResultF32 d_bias, bool transposed) {
  if (!Fits(x, w, count, dy, *d_bias, transposed) || dx->element_count() != x.element_count() ||
      dw->element_count() != w.element_count()) {
    return Invalid();
  }
  const Weight weight(w, transposed);
  const int64_t in = weight.in, out = weight.out;
  const int64_t capacity = x.dimensions()[0], tokens = Tokens(count, capacity);
  Clear(dx->typed_data(), tokens, capacity, in);
  if (tokens == 0) Clear(dw->typed_data(), 0, in, out);
  const Multiplication back({dy.typed_data(), out, 1}, weight.backward, tokens, out, in,
                            dx->typed_data(), kTasks * pool.num_threads(), nullptr, false);
  const Matrix tall = transposed ? Matrix{dy.typed_data(), 1, out} : Matrix{x.typed_data(), 1, in};
  const Matrix wide = transposed ? Matrix{x.typed_data(), in, 1} : Matrix{dy.typed_data(), out, 1};
  // Its tasks, which begin first, are larger: each copies its rows of the turned matrix.
  const Multiplication sum(tall, wide, transposed ? out : in, tokens, transposed ? in : out,
                           dw->typed_data(), 4 * pool.num_threads(), nullptr,
                           d_bias->element_count() > 0);
  if (!back.ok() || !sum.ok()) return NoMemory();
  const auto pack = [&](int64_t j) {
    j < back.packs() ? back.Pack(j) : sum.Pack(j - back.packs());
  };
  const int64_t biases = d_bias->element_count() > 0 ? 1 : 0;
  const auto run = [&](int64_t task) {
    if (task < biases) return sum.ColumnSums(d_bias->typed_data());
    task -= biases;
    task < sum.tasks() ? sum.Run(task) : back.Run(task - sum.tasks());
  };
  ParallelPhases(pool, {{back.packs() + sum.packs(), pack},
                        {biases + back.tasks() + sum.tasks(), run}});
  return ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_product_forward, wafer::Forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::S32>()
                                  .Arg<wafer::F32>()
                                  .Ret<wafer::F32>()
                                  .Attr<bool>("transposed"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_product_backward, wafer::Backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::S32>()
                                  .Arg<wafer::F32>()
                                  .Ret<wafer::F32>()
                                  .Ret<wafer::F32>()
                                  .Ret<wafer::F32>()
                                  .Attr<bool>("transposed"));
