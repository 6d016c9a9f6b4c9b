// Exact top-k masks of rows, as an XLA FFI handler for the CPU.
//
// The length of the rows decides how: a few cells (n:m patterns) are ranked by comparing all pairs,
// longer rows are selected byte by byte, each row by one thread, and the few rows that are longer
// than that by all threads together.
#include <algorithm>
#include <vector>

#include "checks.h"
#include "runtime.h"
#include "select.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

constexpr int64_t kPairs = 64;        // longest row that is ranked by pairs
constexpr int64_t kChunk = 1 << 13;  // cells that one thread takes of a long row

// A key whose signed order is that of the floats: what vector units compare.
inline int32_t SignedKey(float x) { return static_cast<int32_t>(Key(x) ^ 0x80000000u); }

// A cell's rank is the number of cells before it: larger ones, and equal ones of lower index.
void RankRow(const float* row, int64_t n, int64_t want, bool* out) {
  int32_t keys[kPairs], ranks[kPairs] = {};
  for (int64_t i = 0; i < n; ++i) keys[i] = SignedKey(row[i]);
  for (int64_t j = 0; j < n; ++j) {
    const int32_t key = keys[j];
    for (int64_t i = 0; i < j; ++i) ranks[i] += key > keys[i];
    for (int64_t i = j + 1; i < n; ++i) ranks[i] += key >= keys[i];
  }
  for (int64_t i = 0; i < n; ++i) out[i] = ranks[i] < want;
}

// The same with the length known to the compiler: rows of four cells and the like.
template <int N>
void RankRows(const float* rows, const int32_t* want, int64_t begin, int64_t end, bool* out) {
  for (int64_t r = begin; r < end; ++r) {
    int32_t keys[N], ranks[N] = {};
    for (int i = 0; i < N; ++i) keys[i] = SignedKey(rows[r * N + i]);
    for (int j = 0; j < N; ++j) {
      for (int i = 0; i < j; ++i) {
        const int32_t later = keys[j] > keys[i];
        ranks[i] += later;
        ranks[j] += 1 - later;
      }
    }
    for (int i = 0; i < N; ++i) out[r * N + i] = ranks[i] < want[r];
  }
}

// Marks the cells above a threshold, and the first of those equal to it.
void Mark(const float* row, int64_t n, const Threshold& limit, bool* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = limit.Above(Key(row[i]));
  int64_t left = limit.ties;
  for (int64_t i = 0; i < n && left > 0; ++i) {
    if (Key(row[i]) == limit.key) {
      out[i] = true;
      --left;
    }
  }
}

void SelectRow(const float* row, int64_t n, int64_t want, uint32_t* keys, bool* out) {
  for (int64_t i = 0; i < n; ++i) keys[i] = Key(row[i]);
  Mark(row, n, RowThreshold(keys, n, want), out);
}

void SelectLongRow(ffi::ThreadPool& pool, const float* row, int64_t n, int64_t want, bool* out) {
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  const Threshold limit =
      FindThreshold(pool, chunks, kChunk, want, [&](int64_t chunk, uint32_t* keys) {
        const int64_t begin = chunk * kChunk, end = std::min(n, begin + kChunk);
        for (int64_t i = begin; i < end; ++i) keys[i - begin] = Key(row[i]);
        return end - begin;
      });
  const bool any = want > 0, all_ties = limit.ties == limit.equal;
  ParallelFor(pool, chunks, [&](int64_t chunk) {
    for (int64_t i = chunk * kChunk; i < std::min(n, (chunk + 1) * kChunk); ++i) {
      const uint32_t key = Key(row[i]);
      out[i] = any && (key > limit.key || (all_ties && key == limit.key));
    }
  });
  if (!any || all_ties) return;
  int64_t left = limit.ties;
  for (int64_t i = 0; i < n && left > 0; ++i) {
    if (Key(row[i]) == limit.key) {
      out[i] = true;
      --left;
    }
  }
}

void SelectRows(const float* scores, const int32_t* want, int64_t begin, int64_t end, int64_t n,
                bool* out) {
  if (n == 2) return RankRows<2>(scores, want, begin, end, out);
  if (n == 4) return RankRows<4>(scores, want, begin, end, out);
  if (n == 8) return RankRows<8>(scores, want, begin, end, out);
  std::vector<uint32_t> keys(n > kPairs ? n : 0);
  for (int64_t r = begin; r < end; ++r) {
    if (n <= kPairs) {
      RankRow(scores + r * n, n, want[r], out + r * n);
    } else {
      SelectRow(scores + r * n, n, want[r], keys.data(), out + r * n);
    }
  }
}

// mask[R, n] of the k[r] highest scores of each row; among equals the lowest index wins.
ffi::Error TopkMask(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> scores, ffi::Buffer<ffi::S32> k,
                    ffi::ResultBuffer<ffi::PRED> mask) {
  if (scores.dimensions().size() != 2 ||
      static_cast<int64_t>(k.element_count()) != scores.dimensions()[0] ||
      !IsMatrix(*mask, scores.dimensions()[0], scores.dimensions()[1])) {
    return BadPattern("topk_mask takes scores [R, n] and one k per row");
  }
  const int64_t rows = scores.dimensions()[0], n = scores.dimensions()[1];
  const float* data = scores.typed_data();
  const int32_t* want = k.typed_data();
  bool* out = mask->typed_data();
  if (n > kChunk && rows < pool.num_threads()) {
    for (int64_t r = 0; r < rows; ++r) SelectLongRow(pool, data + r * n, n, want[r], out + r * n);
    return ffi::Error::Success();
  }
  const int64_t shares = std::min(rows, (rows * n + kChunk - 1) / kChunk);
  ParallelFor(pool, shares, [&](int64_t part) {
    const Share share = ShareOf(rows, part, shares);
    SelectRows(data, want, share.begin, share.end, n, out);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_topk_mask, wafer::TopkMask,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::PRED>>());
