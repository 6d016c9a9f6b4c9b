// Walks as handlers take them: made from compressed rows, checked, and values in their order.
#ifndef WAFER_SPARSITY_WALKS_H_
#define WAFER_SPARSITY_WALKS_H_

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "checks.h"
#include "runtime.h"
#include "walk.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {

inline int64_t BlocksOf(int64_t columns) {
  return std::max<int64_t>(1, (columns + kBlock - 1) / kBlock);
}

// The walk of `rows` outputs over `columns` inputs in these arrays; `slices` has one row of four
// words for each.
inline Walk AsWalk(const void* slices, const uint8_t* offsets, int64_t rows, int64_t columns) {
  const int64_t group = std::min(kGroup, (rows + kSlice - 1) / kSlice * kSlice);
  const int64_t groups = group == 0 ? 0 : (rows + group - 1) / group;
  return {static_cast<const Slice*>(slices), offsets, rows, group, groups, BlocksOf(columns)};
}

inline int64_t SlicesOf(const Walk& walk) {
  return walk.groups * walk.blocks * walk.group / kSlice;
}

// Says what is wrong with a walk whose inputs `slots` offsets name; empty when it leads nowhere
// outside of its arrays. `panels`: all slices are of whole panels.
inline std::string WrongWalk(xla::ffi::ThreadPool& pool, const Walk& walk, int64_t count,
                             int64_t slots, bool* panels) {
  if (count != SlicesOf(walk)) return "there are not as many slices as outputs and inputs need";
  constexpr int64_t kChunk = 1 << 12;
  std::atomic<bool> ok{true}, whole{true};
  ParallelFor(pool, (count + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(count, (chunk + 1) * kChunk), per = walk.group / kSlice;
    bool good = true, flat = true;
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      const Slice& slice = walk.slices[i];
      const int64_t group0 = i / per / walk.blocks * walk.group, length = slice.counts[0];
      const int flags = slice.rows[0] & ~kRowBits;
      for (int c = 0; c < kSlice; ++c) {
        const int64_t row = c == 0 ? slice.rows[0] & kRowBits : slice.rows[c];
        good = good && (row == walk.group || (row < walk.group && group0 + row < walk.rows)) &&
               slice.counts[c] <= length && (row < walk.group || (slice.counts[c] == 0 && flags == 0));
      }
      good = good && length <= kBlock && slice.slots >= 0 && slice.slots + kSlice * length <= slots;
      if (i % per > 0) {  // the slots of a segment are one range
        const Slice& before = walk.slices[i - 1];
        good = good && slice.slots == before.slots + kSlice * before.counts[0];
      }
      if (flags & kPanels) {
        good = good && length % kPanel == 0 && (slice.rows[0] & kRowBits) + kSlice <= walk.group;
      }
      flat = flat && (length == 0 || (flags & kPanels) != 0);
    }
    if (!good) ok = false;
    if (!flat) whole = false;
  });
  if (!ok) return "a slice leads out of the outputs or the slots";
  if (!InRange(pool, walk.offsets, slots, kBlock + 1)) return "an offset leads out of its block";
  *panels = whole;
  return "";
}

// Where the values of each output begin in some of its blocks, so that threads can share the blocks
// of a group.
struct Starts {
  static constexpr int64_t kMost = 8;  // parts of a group
  int64_t parts, blocks;               // of a group; of a part
  std::vector<int32_t> places;         // [groups][parts][group + 1]

  explicit Starts(const Walk& walk)
      : parts(std::min(kMost, walk.blocks)),
        blocks((walk.blocks + parts - 1) / parts),
        places(walk.groups * parts * (walk.group + 1)) {}

  // False where the slices of an output do not name as many values as `pointers` give it.
  bool Fill(xla::ffi::ThreadPool& pool, const Walk& walk, const int32_t* pointers) {
    const int64_t per = walk.group / kSlice;
    std::atomic<bool> ok{true};
    ParallelFor(pool, walk.groups, [&](int64_t g) {
      const int64_t first = g * walk.group, rows = std::min(walk.group, walk.rows - first);
      std::vector<int32_t> at(walk.group + 1);
      std::copy_n(pointers + first, rows, at.begin());
      for (int64_t b = 0; b < walk.blocks; ++b) {
        if (b % blocks == 0) {
          std::copy(at.begin(), at.end(), &places[(g * parts + b / blocks) * (walk.group + 1)]);
        }
        const Slice* slice = walk.slices + (g * walk.blocks + b) * per;
        for (const Slice* end = slice + per; slice < end && slice->counts[0] > 0; ++slice) {
          for (int c = 0; c < kSlice; ++c) at[slice->rows[c] & kRowBits] += slice->counts[c];
        }
      }
      if (!std::equal(at.begin(), at.begin() + rows, pointers + first + 1)) ok = false;
    });
    return ok;
  }
};

}  // namespace wafer

#endif  // WAFER_SPARSITY_WALKS_H_
