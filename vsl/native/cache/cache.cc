// Attention of one new token of each row to the row's key-value cache: an XLA FFI handler. The cache is
// written in place: its results are its operands (input_output_aliases).
#include <algorithm>
#include <string>

#include "row.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;
using Any = ffi::AnyBuffer;

constexpr int64_t kLeast = 1 << 12;  // numbers of a cache that are worth a second thread

const CacheKernels& Kernels() {
  static const CacheKernels& kernels =
      BestOf(wafer_tile_baseline_cache, WAFER_IF_AVX2(wafer_tile_avx2_cache),
             WAFER_IF_AVX512(wafer_tile_avx512_cache));
  return kernels;
}

template <typename A, typename B>
bool Same(const A& a, const B& b) {
  const auto one = a.dimensions(), other = b.dimensions();
  return std::equal(one.begin(), one.end(), other.begin(), other.end());
}

bool Fits(const F32& q, const F32& k, const F32& v, const Any& keys, const Any& values,
          const S32& length, const S32& added) {
  const auto query = q.dimensions(), key = k.dimensions(), slots = keys.dimensions();
  const auto type = keys.element_type();
  return query.size() == 3 && key.size() == 3 && slots.size() == 4 && Same(k, v) &&
         Same(keys, values) && type == values.element_type() &&
         (type == ffi::DataType::F32 || type == ffi::DataType::BF16) && query[0] == key[0] &&
         query[2] == key[2] && slots[0] == key[0] && slots[1] == key[1] && slots[3] == key[2] &&
         key[1] > 0 && query[1] % key[1] == 0 && key[2] % 16 == 0 &&
         static_cast<int64_t>(length.element_count()) == key[0] && Same(length, added);
}

ffi::Error Attend(ffi::ThreadPool pool, F32 q, F32 k, F32 v, Any keys, Any values, S32 length,
                  S32 added, ffi::ResultBuffer<ffi::F32> out, ffi::Result<Any> new_keys,
                  ffi::Result<Any> new_values, float scale) {
  if (!Fits(q, k, v, keys, values, length, added) || !Same(q, *out) ||
      new_keys->untyped_data() != keys.untyped_data() ||
      new_values->untyped_data() != values.untyped_data()) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                      "attention to a cache: expected q [B, N, H], k and v [B, K, H] of float32, keys "
                      "and values [B, K, C, H] that are results, too, length and added [B]");
  }
  const auto sizes = keys.dimensions();
  const int64_t rows = sizes[0], heads = sizes[1], slots = sizes[2];
  const Step step{q.dimensions()[1], heads, slots, sizes[3], keys.element_type() == ffi::DataType::BF16,
                  q.typed_data(), k.typed_data(), v.typed_data(), length.typed_data(),
                  added.typed_data(), scale, keys.untyped_data(), values.untyped_data(),
                  out->typed_data()};
  int64_t seen = 0;
  for (int64_t b = 0; b < rows; ++b) seen += std::clamp<int64_t>(step.length[b], 0, slots);
  const int64_t shares =
      std::clamp<int64_t>(seen * heads * step.width / kLeast, 1, std::min(rows * heads, pool.num_threads()));
  const int64_t room = slots + 16;
  const Scratch scratch(sizeof(float) * room * shares);
  if (!scratch.ok()) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "attention to a cache: no memory for scratch");
  }
  ParallelFor(pool, shares, [&](int64_t share) {
    const int64_t all = rows * heads;
    for (int64_t i = all * share / shares; i < all * (share + 1) / shares; ++i) {
      Kernels().attend(step, i / heads, i % heads, scratch.floats() + room * share);
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_attention_cached, wafer::Attend,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::Any>()
                                  .Arg<wafer::Any>()
                                  .Arg<wafer::S32>()
                                  .Arg<wafer::S32>()
                                  .Ret<wafer::F32>()
                                  .Ret<wafer::Any>()
                                  .Ret<wafer::Any>()
                                  .Attr<float>("scale"));
