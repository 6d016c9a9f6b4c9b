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

// Compressed rows of W^T whose indices and pointers were checked.
struct Compressed {
  const void* indices;
  bool wide;
  const int32_t* pointers;
};

// A walk that was checked, and what every product needs to know of it.
struct Checked {
  Walk walk{};
  std::string wrong;
  int64_t slots = 0;
  bool panels = false;

  Checked(xla::ffi::ThreadPool& pool, const xla::ffi::Buffer<xla::ffi::S32>& slices,
          const xla::ffi::Buffer<xla::ffi::U8>& offsets, int64_t rows, int64_t columns)
      : walk(AsWalk(slices.typed_data(), offsets.typed_data(), rows, columns)),
        slots(offsets.element_count()) {
    const auto sizes = slices.dimensions();
    if (sizes.size() != 2 || sizes[1] != sizeof(Slice) / sizeof(int32_t)) {
      wrong = "slices are not rows of four words";
      return;
    }
    wrong = WrongWalk(pool, walk, sizes[0], slots, &panels);
    panels = panels && columns % kPanel == 0;
  }
};

// A walk of W^T, whose values lie as its pointers say.
struct Forward : Checked {
  Starts starts;
  int64_t used = 0;  // values that it names

  Forward(xla::ffi::ThreadPool& pool, const xla::ffi::Buffer<xla::ffi::S32>& pointers,
          const xla::ffi::Buffer<xla::ffi::S32>& slices, const xla::ffi::Buffer<xla::ffi::U8>& offsets, int64_t nnz,
          int64_t rows, int64_t columns)
      : Checked(pool, slices, offsets, rows, columns), starts(walk) {
    if (wrong.empty()) wrong = WrongPointers(pointers, nnz);
    if (wrong.empty() && (static_cast<int64_t>(pointers.element_count()) != rows + 1 ||
                          !starts.Fill(pool, walk, pointers.typed_data()))) {
      wrong = "the slices do not have as many values of each output as the pointers";
    }
    if (wrong.empty()) used = pointers.typed_data()[rows];
  }
};

// Calls work(first slice, end, where the values of its outputs begin) for every segment of a walk.
template <typename Work>
Phase ForSegments(const Forward& w, Work work) {
  const Walk& walk = w.walk;
  const Starts& starts = w.starts;
  return {walk.groups * starts.parts, [=, &walk, &starts](int64_t item) {
            const int64_t per = walk.group / kSlice, group = item / starts.parts;
            const int64_t begin = item % starts.parts * starts.blocks;
            const int64_t end = std::min(walk.blocks, begin + starts.blocks);
            if (begin >= end) return;
            const auto first = starts.places.begin() + item * (walk.group + 1);
            std::vector<int32_t> at(first, first + walk.group + 1);
            for (int64_t b = begin; b < end; ++b) {
              const Slice* slice = walk.slices + (group * walk.blocks + b) * per;
              work(slice, slice + per, at.data());
            }
          }};
}

// Values in the order of the slots of block `b` of W's walk: of kBlock columns of W. False where the walk does not have the
// entries of these columns. `ordered` has room for one value behind the slots.
template <typename Index>
bool OrderBlock(const Walk& walk, int64_t b, int64_t columns, const Index* indices,
                const int32_t* pointers, const float* values, uint32_t slots, float* ordered) {
  const int64_t per = walk.group / kSlice;
  std::vector<uint32_t> next(walk.groups * walk.group);  // slot of each output's next value
  const auto for_outputs = [&](const auto& visit) {
    for (int64_t g = 0; g < walk.groups; ++g) {
      const Slice* slice = walk.slices + (g * walk.blocks + b) * per;
      for (const Slice* end = slice + per; slice < end; ++slice) {
        for (int c = 0; c < kSlice; ++c) {
          const int64_t row = slice->rows[c] & kRowBits;
          if (row < walk.group) visit(*slice, c, next[g * walk.group + row]);
        }
      }
    }
  };
  for_outputs([&](const Slice& slice, int c, uint32_t& slot) {
    slot = slice.slots + c;
    for (int j = slice.counts[c]; j < slice.counts[0]; ++j) {
      ordered[slice.slots + kSlice * j + c] = -0.0f;  // changes no sum
    }
  });
  for (int64_t i = pointers[b * kBlock]; i < pointers[std::min(columns, (b + 1) * kBlock)]; ++i) {
    uint32_t& slot = next[indices[i]];
    ordered[std::min(slot, slots)] = values[i];
    slot += kSlice;
  }
  bool ok = true;
  for_outputs([&](const Slice& slice, int c, uint32_t slot) {
    ok = ok && slot == static_cast<uint32_t>(slice.slots + c + kSlice * slice.counts[c]);
  });
  return ok;
}

// Values in the order of the slots of W's walk; `ok` becomes false where they do not fit.
inline Phase Ordering(const Checked& t, const Compressed& w, int64_t columns, const float* values,
               float* ordered, std::atomic<bool>* ok) {
  const Walk walk = t.walk;
  const uint32_t slots = static_cast<uint32_t>(t.slots);
  return {walk.rows == 0 ? 0 : walk.blocks, [=](int64_t b) {
            const bool fits =
                w.wide ? OrderBlock(walk, b, columns, static_cast<const int32_t*>(w.indices),
                                    w.pointers, values, slots, ordered)
                       : OrderBlock(walk, b, columns, static_cast<const uint16_t*>(w.indices),
                                    w.pointers, values, slots, ordered);
            if (!fits) *ok = false;
          }};
}

}  // namespace wafer

#endif  // WAFER_SPARSITY_WALKS_H_
