// y = x W for the few rows of a decoding step, as an XLA FFI handler for the CPU; see decode.h.
//
// One call takes all weights that read the same x. Their output columns are cut into blocks, which
// threads take; a block's part of the weight stays in the cache while all rows, 16 at a time,
// pass over it. Every column is summed in one
// order, so results do not depend on the threads.
#include "decode.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
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

// Rows of x one after another, each of `inputs` floats.
void PackRows(const float* x, int64_t width, int64_t count, int64_t rows, int64_t inputs, float* to) {
  std::fill(to, to + rows * inputs, 0.0f);
  for (int64_t r = 0; r < count; ++r) std::copy(x + r * width, x + (r + 1) * width, to + r * inputs);
}

// Rows of x side by side for every input, 0 where there is none.
void PackSides(const float* x, int64_t width, int64_t count, int64_t rows, float* to) {
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t r = 0; r < rows; ++r) *to++ = r < count ? x[r * width + i] : 0.0f;
  }
}

// How rows of activations lie for a kernel; see decode.h.
enum Packing { kGroupsOf16, kPairsOf16, kWholeNumbers, kBytePairs, kRowByRow, kSideBySide, kPackings };

// Floats of one packed row of x.
int64_t PackedInputs(Packing packing, int64_t width) {
  switch (packing) {
    case kRowByRow:
    case kSideBySide: return Words(width) * kWord + kWindow;
    case kWholeNumbers: return kGroup + Words(width) * kWord;
    case kBytePairs: return kGroup + Words(width) * kWord / 2;
    default: return Words(width) * kWord;
  }
}

void PackAs(Packing packing, const float* x, int64_t width, int64_t count, int64_t rows, float* to) {
  if (packing == kRowByRow) return PackRows(x, width, count, rows, PackedInputs(packing, width), to);
  if (packing == kSideBySide) return PackSides(x, width, count, rows, to);
  if (packing == kGroupsOf16) return Pack(x, width, count, rows, 1, to);
  if (packing == kPairsOf16) return Pack(x, width, count, rows, 2, to);
  std::vector<float> whole(count * width);
  std::fill(to, to + rows, 0.0f);
  Round(x, width, count, to, whole.data());
  if (packing == kWholeNumbers) return Pack(whole.data(), width, count, rows, 1, to + rows * kGroup);
  PackBytes(whole.data(), width, count, rows, reinterpret_cast<uint8_t*>(to + rows * kGroup));
}

// A weight, how it is multiplied, and its results.
struct Product {
  int64_t outputs, bytes;
  int64_t parts;  // that blocks are made of: outputs, of which kernels take four at a time, or slices
  Packing packing;
  std::function<void(const float* x, int rows, int64_t begin, int64_t end, int64_t written, float* y,
                     int64_t stride)>
      multiply;
  float* y;
  const float* bias = nullptr;  // [outputs], or nullptr

  int64_t blocks() const { return parts == 0 ? 0 : std::clamp<int64_t>(bytes / kBlockBytes, 1, parts); }
  int64_t first(int64_t block) const {
    const int64_t part = parts * block / blocks();
    return parts < outputs || block == blocks() ? part : part / 4 * 4;
  }
};

Product ByGroups(const Columns& w, int64_t outputs, int64_t bytes, float* y) {
  const bool int8 = w.number == Number::kInt8, as_bytes = int8 && Bytes().layout(w) == Layout::kBytes;
  const bool pairs = w.masks != nullptr && Decoder().layout(w) == Layout::kPairs;
  const auto multiply = as_bytes ? Bytes().multiply
                        : w.masks != nullptr ? Decoder().multiply
                                             : Streams().dense;
  const Packing packing = as_bytes ? kBytePairs : int8 ? kWholeNumbers : pairs ? kPairsOf16 : kGroupsOf16;
  return {outputs, bytes, outputs, packing, [w, multiply](auto... rest) { multiply(w, rest...); }, y};
}

// All products with the same x, cut into blocks of outputs, whichever weight they are of. A thread takes
// neighbouring blocks of a share of its own, which kernels ask for ahead, then what other shares have left.
ffi::Error Run(ffi::ThreadPool& pool, const std::vector<Product>& products,
               const ffi::Buffer<ffi::F32>& x) {
  const int64_t count = x.dimensions()[0], width = x.dimensions()[1];
  const int64_t passes = (count + kMostRows - 1) / kMostRows, rows = Padded(count);
  if (count == 0) return ffi::Error::Success();
  const auto left = [&](int64_t p) { return std::min<int64_t>(kMostRows, count - p * kMostRows); };
  int64_t blocks = 0;
  for (const Product& w : products) blocks += w.blocks();
  std::optional<Scratch> packed[kPackings];
  for (const Product& w : products) {
    std::optional<Scratch>& to = packed[w.packing];
    if (to) continue;
    const int64_t inputs = PackedInputs(w.packing, width);
    to.emplace(sizeof(float) * std::max<int64_t>(1, rows * passes * inputs));
    if (!to->ok()) {
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, "sparse decode: no memory for scratch");
    }
    for (int64_t p = 0; p < passes; ++p) {
      PackAs(w.packing, x.typed_data() + p * kMostRows * width, width, left(p), rows,
             to->floats() + p * rows * inputs);
    }
  }
  const auto multiply = [&](int64_t block) {
    const Product* w = products.data();
    for (; block >= w->blocks(); ++w) block -= w->blocks();
    const int64_t inputs = PackedInputs(w->packing, width);
    for (int64_t p = 0; p < passes; ++p) {
      w->multiply(packed[w->packing]->floats() + p * rows * inputs, static_cast<int>(rows),
                  w->first(block), w->first(block + 1), left(p),
                  w->y + p * kMostRows * w->outputs, w->outputs);
    }
  };
  const int64_t shares = std::min<int64_t>(pool.num_threads(), blocks);
  std::vector<std::atomic<int64_t>> taken(shares);
  ParallelFor(pool, shares, [&](int64_t own) {
    for (int64_t share = own; share < own + shares; ++share) {
      const int64_t first = blocks * (share % shares) / shares, end = blocks * (share % shares + 1) / shares;
      for (int64_t k; (k = first + taken[share % shares].fetch_add(1)) < end;) multiply(k);
    }
  });
  for (const Product& w : products) {
    for (int64_t t = 0; w.bias != nullptr && t < count; ++t) {
      for (int64_t n = 0; n < w.outputs; ++n) w.y[t * w.outputs + n] += w.bias[n];
    }
  }
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
bool HasScales(const ffi::AnyBuffer& values, const ffi::AnyBuffer& scales, int64_t outputs) {
  const bool int8 = values.element_type() == ffi::DataType::S8;
  return (int8 || IsValue(values)) && scales.element_type() == ffi::DataType::F32 &&
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

Columns OfColumns(const ffi::AnyBuffer& values, const ffi::AnyBuffer& scales,
                  const uint16_t* masks, const int32_t* pointers, int64_t outputs, int64_t groups) {
  static const bool spreads = Processor().vbmi2, adds = spreads && AddsBytes();
  const Number number = values.element_type() == ffi::DataType::S8     ? Number::kInt8
                        : values.element_type() == ffi::DataType::BF16 ? Number::kBfloat16
                                                                       : Number::kFloat32;
  const bool wide = number == Number::kInt8
                        ? adds && groups % 4 == 0 && groups * kGroup <= kMostInputs
                        : spreads;
  return {values.untyped_data(), number, masks, pointers, groups, static_cast<const float*>(scales.untyped_data()), wide};
}

// Whether these are pointers of all outputs into the values, `past` of them behind the last output.
bool Fits(const ffi::Buffer<ffi::S32>& pointers, int64_t outputs, int64_t past, int64_t count) {
  const int32_t* at = pointers.typed_data();
  if (static_cast<int64_t>(pointers.element_count()) != outputs + 1) return false;
  int32_t falls = 0;  // negative where a pointer is less than the one before it
  for (int64_t n = 0; n < outputs; ++n) falls |= at[n + 1] < at[n] ? -1 : 0;
  return at[0] == 0 && falls == 0 &&
         at[outputs] + past <= count;
}

// Of x [T, K] a weight takes these; see Decode.
struct Operands {
  ffi::AnyBuffer values, outer, places;
  ffi::Buffer<ffi::S32> pointers;
  int64_t inputs, outputs;
  float* y;
};

// Whether masks and pointers agree was asked when the weight was made: it costs as much as the
// product.
ffi::ErrorOr<Product> Masked(const Operands& w) {
  const auto words = w.places.dimensions();
  const bool int8 = w.values.element_type() == ffi::DataType::S8;
  if (words.size() != 2 || words[0] != w.outputs || words[1] != Words(w.inputs) * kWord / kGroup ||
      !HasScales(w.values, w.outer, w.outputs)) {
    return ffi::Unexpected(Refuse("shapes of x, scales, masks and pointers"));
  }
  if (!Fits(w.pointers, w.outputs, int8 ? kPastInt8 : kPast, static_cast<int64_t>(w.values.element_count()))) {
    return ffi::Unexpected(Refuse("values that do not fit the pointers"));
  }
  const auto* masks = static_cast<const uint16_t*>(w.places.untyped_data());
  const Columns columns = OfColumns(w.values, w.outer, masks, w.pointers.typed_data(), w.outputs, words[1]);
  const auto bytes = static_cast<int64_t>(w.values.size_bytes() + w.places.size_bytes());
  return ByGroups(columns, w.outputs, bytes, w.y);
}

// Whether values and places are of kept inputs was asked when the weight was made, too.
ffi::ErrorOr<Product> InSlices(const Operands& w) {
  const int64_t slices = (w.outputs + kGroup - 1) / kGroup;
  const auto count = static_cast<int64_t>(w.values.element_count());
  if (!IsValue(w.values) || w.outer.element_type() != ffi::DataType::S32 ||
      static_cast<int64_t>(w.outer.element_count()) != w.outputs ||
      static_cast<int64_t>(w.places.element_count()) != count || count % (kEach * kGroup) != 0 ||
      !Fits(w.pointers, slices, 0, count / (kEach * kGroup))) {
    return ffi::Unexpected(Refuse("values that do not fit the pointers, places or order"));
  }
  const auto* order = static_cast<const int32_t*>(w.outer.untyped_data());
  if (std::any_of(order, order + w.outputs, [&](int32_t n) { return n < 0 || n >= w.outputs; })) {
    return ffi::Unexpected(Refuse("an order of other outputs"));
  }
  const bool bf16 = w.values.element_type() == ffi::DataType::BF16;
  const Sliced sliced{w.values.untyped_data(), bf16, static_cast<const uint8_t*>(w.places.untyped_data()),
                      w.pointers.typed_data(), order, w.outputs, Words(w.inputs) * kWord / kGroup};
  const auto multiply = [sliced](auto... rest) { Streams().sliced(sliced, rest...); };
  const Packing packing = Streams().slices_take == Layout::kRows ? kRowByRow : kSideBySide;
  return Product{w.outputs, count * (bf16 ? 3 : 5), slices, packing, multiply, w.y};
}

// All of a weight, [N, K] with K a multiple of 16.
ffi::ErrorOr<Product> Whole(const Operands& w) {
  const auto stored = w.values.dimensions();
  if (stored.size() != 2 || stored[0] != w.outputs || stored[1] != w.inputs ||
      w.inputs % kGroup != 0 || !HasScales(w.values, w.outer, w.outputs)) {
    return ffi::Unexpected(Refuse("shapes of x, scales and a dense weight [outputs, a multiple of 16]"));
  }
  const Columns columns = OfColumns(w.values, w.outer, nullptr, nullptr, w.outputs, w.inputs / kGroup);
  return ByGroups(columns, w.outputs, static_cast<int64_t>(w.values.size_bytes()), w.y);
}

// y[T, N] = x[T, K] W + bias for each weight: its values; of 8-bit values the scale of each output, of slices the
// order of outputs, of others none; masks [N, K / 16], or the place of each value; and where the values of
// each output or slice begin; and the bias. Of dense weights places and pointers have no elements, nor
// has the bias where there is none.
ffi::Error Decode(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::RemainingArgs weights,
                  ffi::RemainingRets results) {
  if (x.dimensions().size() != 2 || results.size() == 0 || weights.size() != 5 * results.size()) {
    return Refuse("shape of x or number of operands");
  }
  std::vector<Product> products;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto values = weights.get<ffi::AnyBuffer>(5 * i), places = weights.get<ffi::AnyBuffer>(5 * i + 2);
    const auto outer = weights.get<ffi::AnyBuffer>(5 * i + 1);
    const auto pointers = weights.get<ffi::Buffer<ffi::S32>>(5 * i + 3);
    const auto bias = weights.get<ffi::Buffer<ffi::F32>>(5 * i + 4);
    auto y = results.get<ffi::Buffer<ffi::F32>>(i);
    if (!values || !outer || !places || !pointers || !bias || !y) return Refuse("dtypes");
    const auto sizes = (*y)->dimensions();
    const auto added = static_cast<int64_t>(bias->element_count());
    if (sizes.size() != 2 || sizes[0] != x.dimensions()[0] || (added != 0 && added != sizes[1])) {
      return Refuse("shapes of x, y and bias");
    }
    const Operands w{*values,  *outer,  *places, *pointers, x.dimensions()[1],
                     sizes[1], (*y)->typed_data()};
    ffi::ErrorOr<Product> product = places->element_type() == ffi::DataType::U16  ? Masked(w)
                                          : places->element_type() == ffi::DataType::U8 ? InSlices(w)
                                                                                        : Whole(w);
    if (!product) return product.error();
    if (added != 0) product->bias = bias->typed_data();
    products.push_back(*product);
  }
  return Run(pool, products, x);
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_decode, wafer::Decode,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .RemainingArgs()
                                  .RemainingRets());
