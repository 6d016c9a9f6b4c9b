// y = x W for the few rows of a decoding step, as an XLA FFI handler for the CPU; see decode.h.
//
// Output columns are cut into blocks, which threads take in turn; a block's part of the weight
// stays in the cache while all rows, 16 at a time, pass over it. Every column is summed in one
// order, so results do not depend on the threads.
#include "decode.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "checks.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kBlockBytes = 1 << 15;
constexpr float kMost = 32767;  // the largest integer of a rounded activation

// Of 64 inputs.
int64_t Words(int64_t width) { return (width + kWord - 1) / kWord; }

const DecodeKernels& Decoder() {
  static const DecodeKernels& kernels =
      BestOf(wafer_tile_baseline_decode, WAFER_IF_AVX2(wafer_tile_avx2_decode),
             WAFER_IF_AVX512(wafer_tile_avx512_decode));
  return kernels;
}

const DecodeKernels& Bytes() {
  static const DecodeKernels& kernels =
      BestOf(wafer_tile_baseline_bytes, WAFER_IF_AVX2(wafer_tile_avx2_bytes),
             WAFER_IF_AVX512(wafer_tile_avx512_bytes));
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
  for (int64_t first = 0; first < Words(width) * kWord; first += step * kGroup) {
    const int64_t inputs = std::clamp<int64_t>(width - first, 0, step * kGroup);
    for (int64_t r = 0; r < rows; ++r, to += step * kGroup) {
      std::fill(to, to + step * kGroup, 0.0f);
      if (r >= count) continue;
      const float* from = x + r * width + first;
      for (int64_t part = 0; part < step; ++part) {
        for (int64_t i = part; i < inputs; i += step) to[part * kGroup + i / step] = from[i];
      }
    }
  }
}

// Rows as integers of 16 bits and a factor for each, NaN where x is not finite: whole[r * width + i]
// is the integer nearest to x / factor, as a float.
void Round(const float* x, int64_t width, int64_t count, float* factors, float* __restrict whole) {
  for (int64_t r = 0; r < count; ++r, x += width, whole += width) {
    float largest[kGroup] = {}, wrong[kGroup] = {};  // by lane: a loop over floats stays in order
    const auto add = [&](int64_t first, int64_t inputs) {
      for (int64_t i = 0; i < inputs; ++i) {
        const float value = x[first + i], size = std::fabs(value);
        largest[i] = size > largest[i] ? size : largest[i];
        wrong[i] += value * 0.0f;
      }
    };
    for (int64_t i = 0; i < width / kGroup; ++i) add(i * kGroup, kGroup);
    add(width / kGroup * kGroup, width % kGroup);
    const float most = *std::max_element(largest, largest + kGroup);
    const float nan = std::accumulate(wrong, wrong + kGroup, 0.0f);  // or 0
    const float per = kMost / most, by = per <= FLT_MAX && nan == 0 ? per : 0;
    factors[r] = (by > 0 ? most / kMost : 0) + nan;
    // Added to 1.5 * 2^23, a float loses what is behind its point.
    for (int64_t i = 0; i < width; ++i) {
      const float scaled = by > 0 ? x[i] * by : 0;
      whole[i] = (scaled + 12582912.0f) - 12582912.0f;
    }
  }
}

// Whole numbers as their upper bytes plus 128, and their lower ones; see decode.h.
void PackBytes(const float* whole, int64_t width, int64_t count, int64_t rows,
               uint8_t* __restrict to) {
  std::fill(to, to + Words(width) * rows * 2 * kWord, uint8_t{0});
  for (int64_t first = 0; first < width; first += kWord) {
    const int64_t inputs = std::min<int64_t>(kWord, width - first);
    for (int64_t r = 0; r < rows; ++r, to += 2 * kWord) {
      if (r >= count) continue;
      for (int64_t i = 0; i < inputs; ++i) {
        const int32_t bits = static_cast<int32_t>(whole[r * width + first + i]) + 32768;
        to[i] = static_cast<uint8_t>(bits >> 8), to[kWord + i] = static_cast<uint8_t>(bits);
      }
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
  const bool bytes = w.number == Number::kInt8 && Bytes().layout(w) == Layout::kBytes;
  const int64_t step = w.masks != nullptr && Decoder().layout(w) == Layout::kPairs ? 2 : 1;
  const auto multiply = bytes ? Bytes().multiply
                        : w.masks != nullptr ? Decoder().multiply
                                             : Streams().dense;
  const auto run = [w, multiply](auto... rest) { multiply(w, rest...); };
  const int64_t padded = (w.groups + 3) / 4 * kWord;
  if (w.number != Number::kInt8) {
    const auto pack = [step](const float* x, int64_t width, int64_t count, int64_t rows, float* to) {
      Pack(x, width, count, rows, step, to);
    };
    return {padded, 0, pack, run};
  }
  const auto pack = [bytes](const float* x, int64_t width, int64_t count, int64_t rows, float* to) {
    std::vector<float> whole(count * width);
    std::fill(to, to + rows, 0.0f);
    Round(x, width, count, to, whole.data());
    if (bytes) return PackBytes(whole.data(), width, count, rows, reinterpret_cast<uint8_t*>(to + rows));
    Pack(whole.data(), width, count, rows, 1, to + rows);
  };
  return {1 + padded / (bytes ? 2 : 1), 0, pack, run};
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

// Whether these are values of a type that has such scales.
bool HasScales(const ffi::AnyBuffer& values, const ffi::Buffer<ffi::F32>& scales, int64_t outputs) {
  const bool int8 = values.element_type() == ffi::DataType::S8;
  return (int8 || IsValue(values)) &&
         static_cast<int64_t>(scales.element_count()) == (int8 ? outputs : 0);
}

// Whether the processor adds products of bytes.
bool AddsBytes() {
#if defined(__x86_64__) || defined(__i386__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c >> 11 & 1) != 0;
#else
  return false;
#endif
}

// Sums of more inputs than this can leave 32 bits.
constexpr int64_t kMostInputs = 1 << 16;

Columns OfColumns(const ffi::AnyBuffer& values, const ffi::Buffer<ffi::F32>& scales,
                  const uint16_t* masks, const int32_t* pointers, int64_t groups) {
  static const bool spreads = Processor().vbmi2, adds = spreads && AddsBytes();
  const Number number = values.element_type() == ffi::DataType::S8     ? Number::kInt8
                        : values.element_type() == ffi::DataType::BF16 ? Number::kBfloat16
                                                                       : Number::kFloat32;
  const bool wide = number == Number::kInt8
                        ? adds && groups % 4 == 0 && groups * kGroup <= kMostInputs
                        : spreads;
  return {values.untyped_data(), number, masks, pointers, groups, scales.typed_data(), wide};
}

// Whether `at` are pointers into so many values, `past` of them behind the last column.
bool Fits(const int32_t* at, int64_t outputs, int64_t past, const ffi::AnyBuffer& values) {
  return at[0] == 0 && at[outputs] + past <= static_cast<int64_t>(values.element_count()) &&
         std::is_sorted(at, at + outputs + 1);
}

// y[T, N] = x[T, K] W from kept values, their masks [N, K / 16] and where each column begins; of
// 8-bit values each column has its scale, of others there are none. Whether masks and pointers agree
// was asked when the weight was made: it costs as much as the product.
ffi::Error Masked(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer values,
                  ffi::Buffer<ffi::F32> scales, ffi::Buffer<ffi::U16> masks,
                  ffi::Buffer<ffi::S32> pointers, ffi::Result<ffi::Buffer<ffi::F32>> y) {
  const auto sizes = x.dimensions(), words = masks.dimensions();
  const int64_t outputs = static_cast<int64_t>(pointers.element_count()) - 1;
  if (sizes.size() != 2 || words.size() != 2 || outputs < 0 || !IsMatrix(*y, sizes[0], outputs) ||
      words[0] != outputs || words[1] != Words(sizes[1]) * kWord / kGroup ||
      !HasScales(values, scales, outputs)) {
    return Refuse("shapes of x, scales, masks and pointers");
  }
  const int64_t past = values.element_type() == ffi::DataType::S8 ? kPastInt8 : kPast;
  if (!Fits(pointers.typed_data(), outputs, past, values)) {
    return Refuse("values that do not fit the pointers");
  }
  const Columns w = OfColumns(values, scales, masks.typed_data(), pointers.typed_data(), words[1]);
  const int64_t bytes = static_cast<int64_t>(values.size_bytes() + masks.size_bytes());
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
  if (!IsValue(values) || steps.element_count() != values.element_count() ||
      !Fits(pointers.typed_data(), outputs, 0, values)) {
    return Refuse("values that do not fit the pointers or steps");
  }
  const bool bf16 = values.element_type() == ffi::DataType::BF16;
  const Stepped w{values.untyped_data(), bf16, steps.typed_data(), pointers.typed_data()};
  const int64_t bytes = values.element_count() * (bf16 ? 3 : 5);
  return Run(pool, BySteps(w, outputs, sizes[1]), outputs, bytes, x, y->typed_data());
}

// y[T, N] = x[T, K] W from all of W, [N, K] with K a multiple of 16; scales as Masked has them.
ffi::Error Whole(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer values,
                 ffi::Buffer<ffi::F32> scales, ffi::Result<ffi::Buffer<ffi::F32>> y) {
  const auto sizes = x.dimensions(), stored = values.dimensions();
  if (sizes.size() != 2 || stored.size() != 2 || stored[1] != sizes[1] || sizes[1] % kGroup != 0 ||
      !HasScales(values, scales, stored[0]) || !IsMatrix(*y, sizes[0], stored[0])) {
    return Refuse("shapes of x, scales and a dense weight [outputs, a multiple of 16]");
  }
  const Columns w = OfColumns(values, scales, nullptr, nullptr, sizes[1] / kGroup);
  return Run(pool, ByGroups(w), stored[0], static_cast<int64_t>(values.size_bytes()), x, y->typed_data());
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_decode, wafer::Masked,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
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
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
