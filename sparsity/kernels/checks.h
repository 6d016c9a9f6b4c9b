// Patterns come from users: one that leads outside its arrays is refused before anything is read.
#ifndef WAFER_SPARSITY_CHECKS_H_
#define WAFER_SPARSITY_CHECKS_H_

#include <algorithm>
#include <atomic>
#include <string>

#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {

// Whether all of indices[0, count) lie in [0, limit); vectorized, about the speed of memory.
template <typename Index>
bool InRange(xla::ffi::ThreadPool& pool, const Index* indices, int64_t count, int64_t limit) {
  constexpr int64_t kChunk = 1 << 17;
  std::atomic<bool> ok{true};
  ParallelFor(pool, (count + kChunk - 1) / kChunk, [&](int64_t chunk) {
    uint32_t highest = 0;  // a negative index is a high one
    const int64_t end = std::min(count, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      highest = std::max(highest, static_cast<uint32_t>(indices[i]));
    }
    if (highest >= limit) ok = false;
  });
  return ok;
}

inline std::string WrongPointers(const xla::ffi::Buffer<xla::ffi::S32>& pointers, int64_t nnz) {
  const int64_t count = pointers.element_count();
  const int32_t* at = pointers.typed_data();
  if (count < 1 || at[0] < 0 || at[count - 1] > nnz || !std::is_sorted(at, at + count)) {
    return "pointers do not rise from 0 to at most the number of values, " + std::to_string(nnz);
  }
  return "";
}

// Says what is wrong with compressed rows of `nnz` values and their indices below `limit`; empty
// when nothing is. Rows that are not sorted, or hold an index twice, are sums of what they hold.
inline std::string Wrong(xla::ffi::ThreadPool& pool, const xla::ffi::AnyBuffer& indices,
                         const xla::ffi::Buffer<xla::ffi::S32>& pointers, int64_t nnz,
                         int64_t limit) {
  using xla::ffi::DataType;
  const bool wide = indices.element_type() == DataType::S32;
  if (!wide && indices.element_type() != DataType::U16) return "indices are neither uint16 nor int32";
  if (static_cast<int64_t>(indices.element_count()) != nnz) return "there is not one index per value";
  const std::string wrong = WrongPointers(pointers, nnz);
  if (!wrong.empty()) return wrong;
  const int64_t used = pointers.typed_data()[pointers.element_count() - 1];
  const bool inside =
      wide ? InRange(pool, static_cast<const int32_t*>(indices.untyped_data()), used, limit)
           : InRange(pool, static_cast<const uint16_t*>(indices.untyped_data()), used, limit);
  return inside ? "" : "an index is not in 0 .. " + std::to_string(limit - 1);
}

template <typename Buffer>
bool IsMatrix(const Buffer& buffer, int64_t rows, int64_t columns) {
  const auto sizes = buffer.dimensions();
  return sizes.size() == 2 && sizes[0] == rows && sizes[1] == columns;
}

inline xla::ffi::Error BadPattern(const std::string& what) {
  return xla::ffi::Error(xla::ffi::ErrorCode::kInvalidArgument,
                         "sparse kernels: " + what +
                             "; make patterns with pattern_from_mask, and let values, pattern and "
                             "dense arrays come from the same weight");
}

}  // namespace wafer

#endif  // WAFER_SPARSITY_CHECKS_H_
