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

// Calls visit(k, n, place) for every value, row by row; rows go to different threads.
template <typename Row, typename Visit>
void ForRows(ffi::ThreadPool& pool, const ffi::AnyBuffer& t_indices,
             const ffi::Buffer<ffi::S32>& t_pointers, const ffi::Buffer<ffi::S32>& order,
             const Row& begin_row, const Visit& visit) {
  constexpr int64_t kRows = 16;
  const int64_t rows = static_cast<int64_t>(t_pointers.element_count()) - 1;
  const bool wide = t_indices.element_type() != ffi::DataType::U16;
  ParallelFor(pool, (rows + kRows - 1) / kRows, [&](int64_t chunk) {
    for (int64_t k = chunk * kRows; k < std::min(rows, (chunk + 1) * kRows); ++k) {
      begin_row(k);
      for (int32_t i = t_pointers.typed_data()[k]; i < t_pointers.typed_data()[k + 1]; ++i) {
        const int64_t n = wide ? static_cast<const int32_t*>(t_indices.untyped_data())[i]
                               : static_cast<const uint16_t*>(t_indices.untyped_data())[i];
        visit(k, n, order.typed_data()[i]);
      }
    }
  });
}

// dense[K, N] of the values, `fill` elsewhere.
ffi::Error ToDense(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> values, ffi::AnyBuffer t_indices,
                   ffi::Buffer<ffi::S32> t_pointers, ffi::Buffer<ffi::S32> order,
                   ffi::Buffer<ffi::F32> fill, ffi::ResultBuffer<ffi::F32> dense) {
  const int64_t rows = static_cast<int64_t>(t_pointers.element_count()) - 1;
  const int64_t columns = dense->dimensions().size() == 2 ? dense->dimensions()[1] : 0;
  std::string wrong = Wrong(pool, t_indices, t_pointers, order, values.element_count(), columns);
  if (wrong.empty() && (!IsMatrix(*dense, rows, columns) || fill.element_count() != 1)) {
    wrong = "the dense array does not have the pattern's shape";
  }
  if (!wrong.empty()) return BadPattern(wrong);
  float* out = dense->typed_data();
  const float rest = fill.typed_data()[0];
  ForRows(
      pool, t_indices, t_pointers, order,
      [&](int64_t k) { std::fill_n(out + k * columns, columns, rest); },
      [&](int64_t k, int64_t n, int32_t place) {
        out[k * columns + n] = values.typed_data()[place];
      });
  return ffi::Error::Success();
}

// values[nnz] of a dense [K, N] array, 0 at slack.
ffi::Error Gather(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> dense, ffi::AnyBuffer t_indices,
                  ffi::Buffer<ffi::S32> t_pointers, ffi::Buffer<ffi::S32> order,
                  ffi::ResultBuffer<ffi::F32> values) {
  const int64_t rows = static_cast<int64_t>(t_pointers.element_count()) - 1;
  const int64_t columns = dense.dimensions().size() == 2 ? dense.dimensions()[1] : 0;
  std::string wrong = Wrong(pool, t_indices, t_pointers, order, values->element_count(), columns);
  if (wrong.empty() && !IsMatrix(dense, rows, columns)) {
    wrong = "the dense array does not have the pattern's shape";
  }
  if (!wrong.empty()) return BadPattern(wrong);
  float* out = values->typed_data();
  const int64_t active = t_pointers.typed_data()[t_pointers.element_count() - 1];
  const int64_t nnz = values->element_count();
  std::fill(out + active, out + nnz, 0.0f);  // slack comes last in canonical order
  ForRows(
      pool, t_indices, t_pointers, order, [](int64_t) {},
      [&](int64_t k, int64_t n, int32_t place) {
        out[place] = dense.typed_data()[k * columns + n];
      });
  return ffi::Error::Success();
}

// source[nnz]: where the value of each place of a pattern lies in another pattern of the same
// weight, -1 where that has none. Both list the columns of a row in order.
ffi::Error Places(ffi::ThreadPool pool, ffi::AnyBuffer old_indices,
                  ffi::Buffer<ffi::S32> old_pointers, ffi::Buffer<ffi::S32> old_order,
                  ffi::AnyBuffer t_indices, ffi::Buffer<ffi::S32> t_pointers,
                  ffi::Buffer<ffi::S32> order, ffi::ResultBuffer<ffi::S32> source) {
  const bool wide = old_indices.element_type() != ffi::DataType::U16;
  const int64_t any = int64_t{1} << 31, nnz = order.element_count();
  std::string wrong = Wrong(pool, t_indices, t_pointers, order, nnz, any);
  if (wrong.empty()) {
    wrong = Wrong(pool, old_indices, old_pointers, old_order, old_order.element_count(), any);
  }
  if (wrong.empty() && (old_pointers.element_count() != t_pointers.element_count() ||
                        static_cast<int64_t>(source->element_count()) != nnz)) {
    wrong = "the patterns are of weights of different shapes";
  }
  if (!wrong.empty()) return BadPattern(wrong);
  const int32_t* starts = old_pointers.typed_data();
  const auto column = [&](int32_t i) -> int64_t {
    return wide ? static_cast<const int32_t*>(old_indices.untyped_data())[i]
                : static_cast<const uint16_t*>(old_indices.untyped_data())[i];
  };
  std::fill_n(source->typed_data(), nnz, -1);  // slack stays so
  thread_local int32_t at;  // in the old row
  ForRows(
      pool, t_indices, t_pointers, order, [&](int64_t k) { at = starts[k]; },
      [&](int64_t k, int64_t n, int32_t place) {
        while (at < starts[k + 1] && column(at) < n) ++at;
        if (at < starts[k + 1] && column(at) == n) {
          source->typed_data()[place] = old_order.typed_data()[at];
        }
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
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_gather, wafer::Gather,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_places, wafer::Places,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
