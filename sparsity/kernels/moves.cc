// Moves values between compressed, dense and changed storage, as XLA FFI handlers for the CPU.
#include <algorithm>
#include <cstring>

#include "checks.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kChunk = 1 << 15;

// out[i] = values[source[i]], or 0 where source is -1 or beyond them.
ffi::Error Take(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> values, ffi::Buffer<ffi::S32> source,
                ffi::ResultBuffer<ffi::F32> out) {
  const int64_t n = source.element_count();
  const uint32_t values_end = static_cast<uint32_t>(values.element_count());
  if (static_cast<int64_t>(out->element_count()) != n) return BadPattern("source does not fit");
  ParallelFor(pool, (n + kChunk - 1) / kChunk, [&](int64_t chunk) {
    for (int64_t i = chunk * kChunk; i < std::min(n, (chunk + 1) * kChunk); ++i) {
      const uint32_t from = static_cast<uint32_t>(source.typed_data()[i]);
      out->typed_data()[i] = from < values_end ? values.typed_data()[from] : 0.0f;
    }
  });
  return ffi::Error::Success();
}

// Calls visit(n, k, place) for every value, column by column; `begin_column`(n) before those of one.
// Threads take columns of other cache lines of a dense array.
template <typename Column, typename Visit>
void ForColumns(ffi::ThreadPool& pool, const ffi::AnyBuffer& indices,
                const ffi::Buffer<ffi::S32>& pointers, const Column& begin_column,
                const Visit& visit) {
  constexpr int64_t kColumns = 16;
  const int64_t columns = static_cast<int64_t>(pointers.element_count()) - 1;
  const auto run = [&](const auto* inputs) {
    ParallelFor(pool, (columns + kColumns - 1) / kColumns, [&](int64_t chunk) {
      for (int64_t n = chunk * kColumns; n < std::min(columns, (chunk + 1) * kColumns); ++n) {
        begin_column(n);
        for (int32_t i = pointers.typed_data()[n]; i < pointers.typed_data()[n + 1]; ++i) {
          visit(n, int64_t{inputs[i]}, i);
        }
      }
    });
  };
  if (indices.element_type() == ffi::DataType::U16) {
    run(static_cast<const uint16_t*>(indices.untyped_data()));
  } else {
    run(static_cast<const int32_t*>(indices.untyped_data()));
  }
}

// Says what is wrong with a pattern of a dense array; empty when nothing is.
template <typename Dense>
std::string WrongMove(ffi::ThreadPool& pool, const ffi::AnyBuffer& indices,
                      const ffi::Buffer<ffi::S32>& pointers, int64_t nnz, const Dense& dense,
                      bool transposed) {
  const auto sizes = dense.dimensions();
  if (sizes.size() != 2 ||
      static_cast<int64_t>(pointers.element_count()) != sizes[transposed ? 0 : 1] + 1) {
    return "the dense array does not have the pattern's shape";
  }
  return Wrong(pool, indices, pointers, nnz, sizes[transposed ? 1 : 0]);
}

// dense[K, N] of the values, or [N, K] where `transposed`; `fill` elsewhere.
ffi::Error ToDense(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> values, ffi::AnyBuffer indices,
                   ffi::Buffer<ffi::S32> pointers, ffi::Buffer<ffi::F32> fill,
                   ffi::ResultBuffer<ffi::F32> dense, bool transposed) {
  std::string wrong =
      WrongMove(pool, indices, pointers, values.element_count(), *dense, transposed);
  if (wrong.empty() && fill.element_count() != 1) wrong = "fill is not one number";
  if (!wrong.empty()) return BadPattern(wrong);
  float* out = dense->typed_data();
  const float *in = values.typed_data(), rest = fill.typed_data()[0];
  const int64_t size = dense->element_count(), width = dense->dimensions()[1];
  ParallelFor(pool, (size + kChunk - 1) / kChunk, [&](int64_t chunk) {
    std::fill(out + chunk * kChunk, out + std::min(size, (chunk + 1) * kChunk), rest);
  });
  const auto none = [](int64_t) {};
  if (transposed) {
    ForColumns(pool, indices, pointers, none,
               [&](int64_t n, int64_t k, int32_t place) { out[n * width + k] = in[place]; });
  } else {
    ForColumns(pool, indices, pointers, none,
               [&](int64_t n, int64_t k, int32_t place) { out[k * width + n] = in[place]; });
  }
  return ffi::Error::Success();
}

// values[nnz] of a dense [K, N] array, 0 at slack.
ffi::Error Gather(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> dense, ffi::AnyBuffer indices,
                  ffi::Buffer<ffi::S32> pointers, ffi::ResultBuffer<ffi::F32> values) {
  const int64_t nnz = values->element_count();
  const std::string wrong = WrongMove(pool, indices, pointers, nnz, dense, false);
  if (!wrong.empty()) return BadPattern(wrong);
  float* out = values->typed_data();
  const float* in = dense.typed_data();
  const int64_t columns = dense.dimensions()[1];
  std::fill(out + pointers.typed_data()[columns], out + nnz, 0.0f);
  ForColumns(
      pool, indices, pointers, [](int64_t) {},
      [&](int64_t n, int64_t k, int32_t place) { out[place] = in[k * columns + n]; });
  return ffi::Error::Success();
}

// source[nnz]: where the value of each place of a pattern lies in another pattern of the same
// weight, -1 where that has none. Both list the inputs of a column in order.
ffi::Error Places(ffi::ThreadPool pool, ffi::AnyBuffer old_indices,
                  ffi::Buffer<ffi::S32> old_pointers, ffi::AnyBuffer indices,
                  ffi::Buffer<ffi::S32> pointers, ffi::ResultBuffer<ffi::S32> source) {
  const bool wide = old_indices.element_type() != ffi::DataType::U16;
  const int64_t any = int64_t{1} << 31, nnz = indices.element_count();
  std::string wrong = Wrong(pool, indices, pointers, nnz, any);
  if (wrong.empty()) wrong = Wrong(pool, old_indices, old_pointers, old_indices.element_count(), any);
  if (wrong.empty() && (old_pointers.element_count() != pointers.element_count() ||
                        static_cast<int64_t>(source->element_count()) != nnz)) {
    wrong = "the patterns are of weights of different shapes";
  }
  if (!wrong.empty()) return BadPattern(wrong);
  const int32_t* starts = old_pointers.typed_data();
  const auto input = [&](int32_t i) -> int64_t {
    return wide ? static_cast<const int32_t*>(old_indices.untyped_data())[i]
                : static_cast<const uint16_t*>(old_indices.untyped_data())[i];
  };
  std::fill_n(source->typed_data(), nnz, -1);  // slack stays so
  thread_local int32_t at;  // in the old column
  ForColumns(
      pool, indices, pointers, [&](int64_t n) { at = starts[n]; },
      [&](int64_t n, int64_t k, int32_t place) {
        while (at < starts[n + 1] && input(at) < k) ++at;
        if (at < starts[n + 1] && input(at) == k) source->typed_data()[place] = at;
      });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_take, wafer::Take,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_to_dense, wafer::ToDense,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<bool>("transposed"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_gather, wafer::Gather,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_places, wafer::Places,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
