// LayerNorm and RMSNorm of the rows of an activation: XLA FFI handlers.
//
// Rows are shared out in chunks that depend on the shape alone, and the chunks' sums for the
// gradients of scale and bias are added in order: no result depends on the number of threads.
#include <algorithm>
#include <cstring>

#include "rows.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;
using ResultF32 = ffi::ResultBuffer<ffi::F32>;

constexpr int64_t kChunks = 64;    // of all rows, at most
constexpr int64_t kColumns = 512;  // of the sums, added up by a task

const NormKernels& Kernels() {
  static const NormKernels& kernels =
      BestOf(wafer_tile_baseline_norm, WAFER_IF_AVX2(wafer_tile_avx2_norm),
             WAFER_IF_AVX512(wafer_tile_avx512_norm));
  return kernels;
}

bool Same(const ffi::AnyBuffer& a, const ffi::AnyBuffer& b) {
  const auto one = a.dimensions(), other = b.dimensions();
  return a.element_type() == b.element_type() &&
         std::equal(one.begin(), one.end(), other.begin(), other.end());
}

// x [T, D] with one scale for each column.
bool Fits(const ffi::AnyBuffer& x, const F32& scale) {
  const auto sizes = x.dimensions();
  return sizes.size() == 2 && sizes[1] == static_cast<int64_t>(scale.element_count()) &&
         (x.element_type() == ffi::DataType::F32 || x.element_type() == ffi::DataType::BF16);
}

ffi::Error Invalid() {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "native norm: expected x [T, D] and gradients of it, all of float32 or of "
                    "bfloat16, scale and bias [D] of float32");
}

Normalization Describe(const ffi::AnyBuffer& x, const F32& scale, float eps, bool centered) {
  return {x.dimensions()[1], x.element_type() == ffi::DataType::BF16, centered,
          eps,               x.untyped_data(),                        scale.typed_data()};
}

ffi::Error Forward(ffi::ThreadPool pool, ffi::AnyBuffer x, F32 scale, F32 bias,
                   ffi::Result<ffi::AnyBuffer> y, float eps, bool centered) {
  if (!Fits(x, scale) || !Same(x, *y) || bias.element_count() != scale.element_count()) {
    return Invalid();
  }
  const Normalization call = Describe(x, scale, eps, centered);
  const int64_t rows = x.dimensions()[0], chunks = std::min(rows, kChunks);
  ParallelFor(pool, chunks, [&](int64_t chunk) {
    Kernels().forward(call, rows * chunk / chunks, rows * (chunk + 1) / chunks, bias.typed_data(),
                      y->untyped_data());
  });
  return ffi::Error::Success();
}

// `added` is another gradient of x, or has no rows.
ffi::Error Backward(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, F32 scale,
                    ffi::AnyBuffer added, ffi::Result<ffi::AnyBuffer> dx, ResultF32 d_scale,
                    ResultF32 d_bias, float eps, bool centered) {
  if (!Fits(x, scale) || !Same(x, dy) || !Same(x, *dx) ||
      (added.element_count() > 0 && !Same(x, added)) ||
      d_scale->element_count() != scale.element_count() ||
      d_bias->element_count() != scale.element_count()) {
    return Invalid();
  }
  const Normalization call = Describe(x, scale, eps, centered);
  const int64_t rows = x.dimensions()[0], chunks = std::min(rows, kChunks), width = call.features;
  const Scratch sums(sizeof(float) * 2 * width * chunks);
  if (!sums.ok()) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "native norm: no memory for scratch");
  }
  const auto differentiate = [&](int64_t chunk) {
    Kernels().backward(call, rows * chunk / chunks, rows * (chunk + 1) / chunks, dy.untyped_data(),
                       added.element_count() > 0 ? added.untyped_data() : nullptr,
                       dx->untyped_data(), sums.floats() + chunk * 2 * width);
  };
  const auto finish = [&](int64_t task) {
    const int64_t from = task / 2 * kColumns, end = std::min(width, from + kColumns);
    float* to = (task % 2 ? d_bias : d_scale)->typed_data();
    std::memset(to + from, 0, sizeof(float) * (end - from));
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* part = sums.floats() + (chunk * 2 + task % 2) * width;
      for (int64_t i = from; i < end; ++i) to[i] += part[i];
    }
  };
  ParallelPhases(pool,
                 {{chunks, differentiate}, {2 * ((width + kColumns - 1) / kColumns), finish}});
  return ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_norm_forward, wafer::Forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::F32>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<float>("eps")
                                  .Attr<bool>("centered"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_norm_backward, wafer::Backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<wafer::F32>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<wafer::F32>()
                                  .Ret<wafer::F32>()
                                  .Attr<float>("eps")
                                  .Attr<bool>("centered"));
