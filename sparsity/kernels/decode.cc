// y = x W for the few rows of a decoding step, as an XLA FFI handler for the CPU; see decode.h.
//
// Output columns are cut into blocks, which threads take in turn; a block's part of the weight
// stays in the cache while all rows, 16 at a time, pass over it. Every column is summed in one
// order, so results do not depend on the threads.
#include "decode.h"

#include <algorithm>
#include <functional>
#include <string>

#include "checks.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kBlockBytes = 1 << 17;

const DecodeKernels& Decoder() {
  static const DecodeKernels& kernels =
      BestOf(wafer_tile_baseline_decode, WAFER_IF_AVX2(wafer_tile_avx2_decode),
             WAFER_IF_AVX512(wafer_tile_avx512_decode));
  return kernels;
}

const StreamKernels& Streams() {
  static const StreamKernels& kernels =
      BestOf(wafer_tile_baseline_streams, WAFER_IF_AVX2(wafer_tile_avx2_streams),
             WAFER_IF_AVX512(wafer_tile_avx512_streams));
  return kernels;
}

// Rows that a pass computes for `count` of them: the next power of two, at most 16.
int64_t Padded(int64_t count) {
  int64_t rows = 1;
  while (rows < count && rows < kMostRows) rows *= 2;
  return rows;
}

// Rows of x as decode.h says, `step` parts of 16 inputs together, 0 where there is none.
void Pack(const float* x, int64_t width, int64_t count, int64_t rows, int64_t step, float* to) {
  for (int64_t first = 0; first < width; first += step * kGroup) {
    const int64_t inputs = std::min(step * kGroup, width - first);
    for (int64_t r = 0; r < rows; ++r, to += step * kGroup) {
      std::fill(to, to + step * kGroup, 0.0f);
      if (r >= count) continue;
      const float* from = x + r * width + first;
      for (int64_t i = 0; i < inputs; ++i) to[i % step * kGroup + i / step] = from[i];
    }
  }
}

// Rows of x side by side for every input, 0 where there is none.
void PackInputs(const float* x, int64_t width, int64_t count, int64_t rows, float* to) {
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t r = 0; r < rows; ++r) *to++ = r < count ? x[r * width + i] : 0.0f;
  }
}

// How the weights of one form are multiplied.
struct Form {
  int64_t inputs;  // of packed rows: those of x and what the form adds
  int64_t beyond;  // inputs behind them that a wrong weight may read
  std::function<void(const float* x, int64_t width, int64_t count, int64_t rows, float* to)> pack;
  std::function<void(const float* x, int rows, int64_t begin, int64_t end, int64_t written, float* y,
                     int64_t stride)>
      multiply;
};

Form ByGroups(const Columns& w) {
  const int64_t step = w.masks != nullptr && Decoder().by_pairs(w) ? 2 : 1;
  const auto pack = [step](const float* x, int64_t width, int64_t count, int64_t rows, float* to) {
    Pack(x, width, count, rows, step, to);
  };
  const auto multiply = w.masks != nullptr ? Decoder().multiply : Streams().dense;
  return {(w.groups + step - 1) / step * step * kGroup, 0, pack,
          [w, multiply](auto... rest) { multiply(w, rest...); }};
}

// To add up the steps of every column would cost as much as the product: there is room for the
// longest column with the largest steps, and memory that nobody touches costs nothing.
Form BySteps(const Stepped& w, int64_t outputs, int64_t inputs) {
  int64_t longest = 0;
  for (int64_t n = 0; n < outputs; ++n) {
    longest = std::max<int64_t>(longest, w.pointers[n + 1] - w.pointers[n]);
  }
  return {inputs, 255 * longest + 1, PackInputs,
          [w](auto... rest) { Streams().stepped(w, rest...); }};
}

// bytes: of the whole weight.
ffi::Error Run(ffi::ThreadPool& pool, const Form& form, int64_t outputs, int64_t bytes,
               const ffi::Buffer<ffi::F32>& x, float* y) {
  const int64_t count = x.dimensions()[0], width = x.dimensions()[1];
  const int64_t passes = (count + kMostRows - 1) / kMostRows;
  if (outputs == 0 || count == 0) return ffi::Error::Success();
  const int64_t rows = Padded(count), pass_floats = rows * form.inputs;
  Scratch packed(sizeof(float) * std::max<int64_t>(1, passes * pass_floats + rows * form.beyond));
  if (!packed.ok()) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "sparse decode: no memory for scratch");
  }
  for (int64_t p = 0; p < passes; ++p) {
    const int64_t first = p * kMostRows;
    form.pack(x.typed_data() + first * width, width, std::min<int64_t>(kMostRows, count - first),
              rows, packed.floats() + p * pass_floats);
  }
  const int64_t blocks = std::clamp<int64_t>(bytes / kBlockBytes, 1, outputs);
  ParallelFor(pool, blocks, [&](int64_t block) {
    for (int64_t p = 0; p < passes; ++p) {
      const int64_t first = p * kMostRows;
      form.multiply(packed.floats() + p * pass_floats, static_cast<int>(rows),
                    outputs * block / blocks, outputs * (block + 1) / blocks,
                    std::min<int64_t>(kMostRows, count - first), y + first * outputs, outputs);
    }
  });
  return ffi::Error::Success();
}

ffi::Error Refuse(const std::string& what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "sparse decode: " + what + "; make weights with DecodeWeight.from_dense");
}

bool IsValue(const ffi::AnyBuffer& values) {
  return values.element_type() == ffi::DataType::F32 || values.element_type() == ffi::DataType::BF16;
}

// Whether `at` are pointers into so many values, `past` of them behind the last column.
bool Fits(const int32_t* at, int64_t outputs, int64_t past, const ffi::AnyBuffer& values) {
  return IsValue(values) && at[0] == 0 &&
         at[outputs] + past <= static_cast<int64_t>(values.element_count()) &&
         std::is_sorted(at, at + outputs + 1);
}

// y[T, N] = x[T, K] W from kept values, their masks [N, K / 16] and where each column begins.
// Whether masks and pointers agree was asked when the weight was made: it costs as much as the
// product.
ffi::Error Masked(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer values,
                  ffi::Buffer<ffi::U16> masks, ffi::Buffer<ffi::S32> pointers,
                  ffi::Result<ffi::Buffer<ffi::F32>> y) {
  const auto sizes = x.dimensions(), words = masks.dimensions();
  const int64_t outputs = static_cast<int64_t>(pointers.element_count()) - 1;
  if (sizes.size() != 2 || words.size() != 2 || outputs < 0 || !IsMatrix(*y, sizes[0], outputs) ||
      words[0] != outputs || words[1] != (sizes[1] + kGroup - 1) / kGroup) {
    return Refuse("shapes of x, masks and pointers");
  }
  if (!Fits(pointers.typed_data(), outputs, kPast, values)) {
    return Refuse("values that do not fit the pointers");
  }
  const bool bf16 = values.element_type() == ffi::DataType::BF16;
  static const bool vbmi2 = Processor().vbmi2;
  const Columns w{values.untyped_data(), bf16,     masks.typed_data(),
                  pointers.typed_data(), words[1], vbmi2};
  const int64_t bytes = values.element_count() * (bf16 ? 2 : 4) + 2 * masks.element_count();
  return Run(pool, ByGroups(w), outputs, bytes, x, y->typed_data());
}

// The same from the distances between kept inputs, one for each value.
ffi::Error FromSteps(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer values,
                   ffi::Buffer<ffi::U8> steps, ffi::Buffer<ffi::S32> pointers,
                   ffi::Result<ffi::Buffer<ffi::F32>> y) {
  const auto sizes = x.dimensions();
  const int64_t outputs = static_cast<int64_t>(pointers.element_count()) - 1;
  if (sizes.size() != 2 || outputs < 0 || !IsMatrix(*y, sizes[0], outputs)) {
    return Refuse("shapes of x and pointers");
  }
  if (steps.element_count() != values.element_count() ||
      !Fits(pointers.typed_data(), outputs, 0, values)) {
    return Refuse("values that do not fit the pointers or steps");
  }
  const bool bf16 = values.element_type() == ffi::DataType::BF16;
  const Stepped w{values.untyped_data(), bf16, steps.typed_data(), pointers.typed_data()};
  const int64_t bytes = values.element_count() * (bf16 ? 3 : 5);
  return Run(pool, BySteps(w, outputs, sizes[1]), outputs, bytes, x, y->typed_data());
}

// y[T, N] = x[T, K] W from all of W, [N, K] with K a multiple of 16.
ffi::Error Whole(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer values,
                 ffi::Result<ffi::Buffer<ffi::F32>> y) {
  const auto sizes = x.dimensions(), stored = values.dimensions();
  if (sizes.size() != 2 || stored.size() != 2 || stored[1] != sizes[1] || sizes[1] % kGroup != 0 ||
      !IsValue(values) || !IsMatrix(*y, sizes[0], stored[0])) {
    return Refuse("shapes of x and a dense weight [outputs, a multiple of 16]");
  }
  const bool bf16 = values.element_type() == ffi::DataType::BF16;
  const Columns w{values.untyped_data(), bf16, nullptr, nullptr, sizes[1] / kGroup, false};
  return Run(pool, ByGroups(w), stored[0], values.element_count() * (bf16 ? 2 : 4), x, y->typed_data());
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_decode, wafer::Masked,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::U16>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_stepped_decode, wafer::FromSteps,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_dense_decode, wafer::Whole,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
