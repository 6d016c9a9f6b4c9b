// Cross-entropy of rows of scores: XLA FFI handlers. A row is one thread's: no result depends on
// the number of threads.
#include <algorithm>

#include "runtime.h"
#include "scores.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;
using ResultF32 = ffi::ResultBuffer<ffi::F32>;

constexpr int64_t kChunks = 64;  // of all rows, at most

const EntropyKernels& Kernels() {
  static const EntropyKernels& kernels =
      BestOf(wafer_tile_baseline_entropy, WAFER_IF_AVX2(wafer_tile_avx2_entropy),
             WAFER_IF_AVX512(wafer_tile_avx512_entropy));
  return kernels;
}

// x [T, V] with labels [T] that are there.
bool Fits(const F32& x, const S32& labels) {
  const auto sizes = x.dimensions();
  const auto count = static_cast<int64_t>(labels.element_count());
  return sizes.size() == 2 && sizes[0] == count && sizes[1] > 0 &&
         std::all_of(labels.typed_data(), labels.typed_data() + count, [&](int32_t label) {
           return label >= 0 && label < sizes[1];
         });
}

ffi::Error Invalid() {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "native cross-entropy: expected scores [T, V] of float32, labels [T] of int32 "
                    "from 0 to V - 1, and a number for each row");
}

// Calls work(from, to) for chunks of rows.
template <typename Work>
void ForRows(ffi::ThreadPool& pool, int64_t rows, Work work) {
  const int64_t chunks = std::min(rows, kChunks);
  ParallelFor(pool, chunks, [&](int64_t chunk) {
    work(rows * chunk / chunks, rows * (chunk + 1) / chunks);
  });
}

ffi::Error Forward(ffi::ThreadPool pool, F32 x, S32 labels, ResultF32 norm, ResultF32 best) {
  if (!Fits(x, labels) || norm->element_count() != labels.element_count() ||
      best->element_count() != labels.element_count()) {
    return Invalid();
  }
  const Scores call = {x.dimensions()[1], x.typed_data(), labels.typed_data()};
  ForRows(pool, x.dimensions()[0], [&](int64_t from, int64_t to) {
    Kernels().forward(call, from, to, norm->typed_data(), best->typed_data());
  });
  return ffi::Error::Success();
}

ffi::Error Backward(ffi::ThreadPool pool, F32 d, F32 x, S32 labels, F32 norm, ResultF32 dx) {
  if (!Fits(x, labels) || norm.element_count() != labels.element_count() ||
      d.element_count() != labels.element_count() || dx->element_count() != x.element_count()) {
    return Invalid();
  }
  const Scores call = {x.dimensions()[1], x.typed_data(), labels.typed_data()};
  ForRows(pool, x.dimensions()[0], [&](int64_t from, int64_t to) {
    Kernels().backward(call, from, to, norm.typed_data(), d.typed_data(), dx->typed_data());
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_entropy_forward, wafer::Forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::S32>()
                                  .Ret<wafer::F32>()
                                  .Ret<wafer::F32>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_entropy_backward, wafer::Backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::F32>()
                                  .Arg<wafer::S32>()
                                  .Arg<wafer::F32>()
                                  .Ret<wafer::F32>());
