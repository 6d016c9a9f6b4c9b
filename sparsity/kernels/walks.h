// Walks as handlers take them: made from compressed rows, checked, and values in their order.
#ifndef WAFER_SPARSITY_WALKS_H_
#define WAFER_SPARSITY_WALKS_H_

#include <algorithm>
#include <atomic>
#include <string>

#include "checks.h"
#include "runtime.h"
#include "walk.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {

inline int64_t BlocksOf(int64_t columns) {
  return std::max<int64_t>(1, (columns + kBlock - 1) / kBlock);
}

// The walk of `rows` outputs over `columns` inputs in these arrays; `slices` has one row of eight
// words for each.
inline Walk AsWalk(const void* slices, const uint8_t* offsets, int64_t rows, int64_t columns) {
  const int64_t group = std::min(kGroup, (rows + kSlice - 1) / kSlice * kSlice);
  const int64_t groups = group == 0 ? 0 : (rows + group - 1) / group;
  return {static_cast<const Slice*>(slices), offsets, rows, group, groups, BlocksOf(columns)};
}

inline int64_t SlicesOf(const Walk& walk) {
  return walk.groups * walk.blocks * walk.group / kSlice;
}

// Says what is wrong with a walk over `nnz` values whose inputs `slots` offsets name; empty when it
// leads nowhere outside of its arrays. `panels`: all slices are of whole panels; `used`: values that
// it names.
inline std::string WrongWalk(xla::ffi::ThreadPool& pool, const Walk& walk, int64_t count,
                             int64_t slots, int64_t nnz, bool* panels, int64_t* used) {
  if (count != SlicesOf(walk)) return "there are not as many slices as outputs and inputs need";
  constexpr int64_t kChunk = 1 << 12;
  std::atomic<bool> ok{true}, whole{true};
  std::atomic<int64_t> most{0};
  ParallelFor(pool, (count + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(count, (chunk + 1) * kChunk), per = walk.group / kSlice;
    bool good = true, flat = true;
    int64_t last = 0;
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      const Slice& slice = walk.slices[i];
      const int64_t group0 = i / per / walk.blocks * walk.group, length = slice.counts[0];
      const int flags = slice.rows[0] & (kAlike | kPanels);
      for (int c = 0; c < kSlice; ++c) {
        const int64_t row = c == 0 ? slice.rows[0] ^ flags : slice.rows[c];
        good = good && (row == walk.group || (row < walk.group && group0 + row < walk.rows)) &&
               slice.counts[c] <= length && slice.starts[c] >= 0 &&
               slice.starts[c] + int64_t{slice.counts[c]} <= nnz &&
               (row < walk.group || (slice.counts[c] == 0 && flags == 0));
        last = std::max(last, slice.starts[c] + int64_t{slice.counts[c]});
      }
      good = good && length <= kBlock && slice.slots >= 0 && slice.slots + kSlice * length <= slots;
      if (i % per > 0) {  // the slots of a segment are one range
        const Slice& before = walk.slices[i - 1];
        good = good && slice.slots == before.slots + kSlice * before.counts[0];
      }
      if (flags & kPanels) {
        good = good && length % kPanel == 0 && (slice.rows[0] ^ flags) + kSlice <= walk.group;
      }
      flat = flat && (length == 0 || (flags & kPanels) != 0);
    }
    if (!good) ok = false;
    if (!flat) whole = false;
    for (int64_t seen = most; last > seen && !most.compare_exchange_weak(seen, last);) {
    }
  });
  if (!ok) return "a slice leads out of the outputs, the values or the slots";
  if (!InRange(pool, walk.offsets, slots, kBlock + 1)) return "an offset leads out of its block";
  *panels = whole;
  *used = most;
  return "";
}

}  // namespace wafer

#endif  // WAFER_SPARSITY_WALKS_H_
