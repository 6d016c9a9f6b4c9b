// Makes the walk of compressed rows (see walk.h), as an XLA FFI handler for the CPU.
#include <vector>

#include "walks.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;

// The segments of one group: where the entries of each row begin in each block, then the slices.
template <typename Index>
class Group {
 public:
  Group(const Walk& walk, const Index* indices, const int32_t* pointers, int64_t group)
      : walk_(walk),
        indices_(indices),
        first_(group * walk.group),
        count_(std::min(walk.group, walk.rows - first_)),
        starts_((walk.blocks + 1) * walk.group) {
    for (int64_t r = 0; r < count_; ++r) {
      int32_t at = pointers[first_ + r];
      const int32_t end = pointers[first_ + r + 1];
      for (int64_t b = 0; b < walk.blocks; ++b) {
        starts_[b * walk.group + r] = at;
        const Index limit = static_cast<Index>((b + 1) * kBlock - 1);
        int32_t previous = static_cast<int32_t>(b * kBlock) - 1;
        for (; at < end && indices[at] <= limit; ++at) {
          sorted_ = sorted_ && static_cast<int32_t>(indices[at]) > previous;
          previous = indices[at];
        }
      }
      starts_[walk.blocks * walk.group + r] = at;
      sorted_ = sorted_ && at == end;
    }
  }
  bool sorted() const { return sorted_; }  // also: no index twice, none beyond the blocks

  // Writes the slices of block b, their slots counted from 0; returns how many slots.
  int32_t Sort(int64_t b, Slice* slices) const {
    const int32_t *begin = &starts_[b * walk_.group], *end = begin + walk_.group;
    int32_t places[kBlock + 2] = {};  // rows by falling number of entries, and in order among equals
    for (int64_t r = 0; r < count_; ++r) ++places[kBlock - (end[r] - begin[r]) + 1];
    for (int i = 1; i <= kBlock + 1; ++i) places[i] += places[i - 1];
    const Slice none{{0, 0, 0, 0},
                     {static_cast<uint16_t>(walk_.group), static_cast<uint16_t>(walk_.group),
                      static_cast<uint16_t>(walk_.group), static_cast<uint16_t>(walk_.group)},
                     {0, 0, 0, 0},
                     0};
    std::fill(slices, slices + walk_.group / kSlice, none);
    for (int64_t r = 0; r < count_; ++r) {
      const int32_t entries = end[r] - begin[r], at = places[kBlock - entries]++;
      Slice& slice = slices[at / kSlice];
      slice.rows[at % kSlice] = static_cast<uint16_t>(r);
      slice.starts[at % kSlice] = begin[r];
      slice.counts[at % kSlice] = static_cast<uint8_t>(entries);
    }
    int32_t slots = 0;
    for (Slice* slice = slices; slice < slices + walk_.group / kSlice; ++slice) {
      slice->slots = slots;
      slots += kSlice * slice->counts[0];
      slice->rows[0] |= Likeness(*slice);
    }
    return slots;
  }

 private:
  uint16_t Likeness(const Slice& slice) const {
    const int length = slice.counts[0];
    const Index* at = indices_ + slice.starts[0];
    if (length == 0 || slice.counts[kSlice - 1] != length) return 0;
    for (int c = 1; c < kSlice; ++c) {
      if (!std::equal(at, at + length, indices_ + slice.starts[c])) return 0;
    }
    for (int j = 0; j < length; j += kPanel) {
      if (j + kPanel > length || at[j] % kPanel != 0 || at[j + kPanel - 1] - at[j] != kPanel - 1) {
        return kAlike;
      }
    }
    // Panels are multiplied by four neighbouring outputs at once.
    const bool neighbours = slice.rows[0] % kSlice == 0 && slice.rows[3] == slice.rows[0] + 3;
    return neighbours ? kAlike | kPanels : kAlike;
  }

  const Walk& walk_;
  const Index* indices_;
  int64_t first_, count_;
  std::vector<int32_t> starts_;  // [blocks + 1][group]
  bool sorted_ = true;
};

template <typename Index>
bool Make(ffi::ThreadPool& pool, const Index* indices, const int32_t* pointers, const Walk& walk,
          Slice* slices, uint8_t* offsets, int64_t room) {
  const int64_t per = walk.group / kSlice, segments = walk.groups * walk.blocks;
  std::vector<int32_t> sizes(segments);
  std::atomic<bool> sorted{true};
  ParallelFor(pool, walk.groups, [&](int64_t g) {
    const Group<Index> group(walk, indices, pointers, g);
    if (!group.sorted()) {
      sorted = false;
      return;
    }
    for (int64_t b = 0; b < walk.blocks; ++b) {
      sizes[g * walk.blocks + b] = group.Sort(b, slices + (g * walk.blocks + b) * per);
    }
  });
  if (!sorted) return false;
  int64_t used = 0;
  std::vector<int64_t> before(segments);
  for (int64_t s = 0; s < segments; ++s) {
    before[s] = used;
    used += sizes[s];
  }
  if (used > room) return false;
  ParallelFor(pool, segments, [&](int64_t s) {
    const int64_t first = s % walk.blocks * kBlock;
    for (Slice* slice = slices + s * per; slice < slices + (s + 1) * per; ++slice) {
      slice->slots += static_cast<int32_t>(before[s]);
      uint8_t* to = offsets + slice->slots;
      for (int c = 0; c < kSlice; ++c) {
        const Index* from = indices + slice->starts[c];
        const int count = slice->counts[c], length = slice->counts[0];
        for (int j = 0; j < count; ++j) to[kSlice * j + c] = static_cast<uint8_t>(from[j] - first);
        for (int j = count; j < length; ++j) to[kSlice * j + c] = kBlock;
      }
    }
  });
  std::fill(offsets + used, offsets + room, uint8_t{kBlock});
  return true;
}

// `columns` inputs; slices [S, 8] are rows of `Slice`.
ffi::Error MakeWalk(ffi::ThreadPool pool, ffi::AnyBuffer indices, ffi::Buffer<ffi::S32> pointers,
                    ffi::ResultBuffer<ffi::S32> slices, ffi::ResultBuffer<ffi::U8> offsets,
                    int64_t columns) {
  const int64_t nnz = indices.element_count();
  const std::string wrong = Wrong(pool, indices, pointers, nnz, columns);
  if (!wrong.empty()) return BadPattern(wrong);
  Slice* out = reinterpret_cast<Slice*>(slices->typed_data());
  uint8_t* places = offsets->typed_data();
  const Walk walk = AsWalk(out, places, static_cast<int64_t>(pointers.element_count()) - 1, columns);
  if (SlicesOf(walk) * 8 != static_cast<int64_t>(slices->element_count())) {
    return BadPattern("there are not as many slices as outputs and inputs need");
  }
  const int64_t room = offsets->element_count();
  const bool ok =
      indices.element_type() == ffi::DataType::U16
          ? Make(pool, static_cast<const uint16_t*>(indices.untyped_data()), pointers.typed_data(),
                 walk, out, places, room)
          : Make(pool, static_cast<const int32_t*>(indices.untyped_data()), pointers.typed_data(),
                 walk, out, places, room);
  return ok ? ffi::Error::Success()
            : BadPattern("the indices of an output do not rise, or there is no room for its slots");
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_walk, wafer::MakeWalk,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::U8>>()
                                  .Attr<int64_t>("columns"));
