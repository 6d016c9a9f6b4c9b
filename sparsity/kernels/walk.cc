// Makes the walks of compressed rows and of their transpose (see walk.h), as an XLA FFI handler.
#include <vector>

#include "walks.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kChunk = kBlock;  // columns whose entries one thread takes: whole blocks of W^T

// A walk while it is made. A cell is an output in a block of inputs.
struct Made {
  Walk walk;
  Slice* slices;
  uint8_t* offsets;
  int64_t room;
  std::vector<uint8_t> counts;  // of a cell's entries, [groups][blocks][group]
  std::vector<int32_t> next;    // slot of a cell's next entry

  Made(int64_t rows, int64_t columns, ffi::ResultBuffer<ffi::S32>& slices_out,
       ffi::ResultBuffer<ffi::U8>& offsets_out)
      : walk(AsWalk(slices_out->typed_data(), nullptr, rows, columns)),
        slices(reinterpret_cast<Slice*>(slices_out->typed_data())),
        offsets(offsets_out->typed_data()),
        room(offsets_out->element_count()),
        counts(Segments() * walk.group),
        next(counts.size()) {}

  int64_t Segments() const { return walk.groups * walk.blocks; }
  int64_t PerSegment() const { return walk.group / kSlice; }

  // Writes the slices of a segment, their slots counted from 0; returns how many slots.
  int64_t Sort(int64_t segment) const {
    const int64_t group = walk.group;
    const uint8_t* entries = &counts[segment * group];
    const int64_t rows = std::min(group, walk.rows - segment / walk.blocks * group);
    int32_t places[kBlock + 2] = {};  // rows by falling number of entries, and in order among equals
    for (int64_t r = 0; r < rows; ++r) ++places[kBlock - entries[r] + 1];
    for (int i = 1; i <= kBlock + 1; ++i) places[i] += places[i - 1];
    Slice none{};
    std::fill_n(none.rows, kSlice, static_cast<uint16_t>(group));
    Slice *first = slices + segment * PerSegment(), *end = first + PerSegment();
    std::fill(first, end, none);
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t at = places[kBlock - entries[r]]++;
      first[at / kSlice].rows[at % kSlice] = static_cast<uint16_t>(r);
      first[at / kSlice].counts[at % kSlice] = entries[r];
    }
    int32_t slots = 0;
    for (Slice* slice = first; slice < end; ++slice) {
      slice->slots = slots;
      slots += kSlice * slice->counts[0];
    }
    return slots;
  }

  // Moves a segment's slots behind `before` others, and marks those without an entry.
  void Place(int64_t segment, int64_t before) {
    Slice* slice = slices + segment * PerSegment();
    for (const Slice* end = slice + PerSegment(); slice < end; ++slice) {
      slice->slots += static_cast<int32_t>(before);
      for (int c = 0; c < kSlice; ++c) {
        if (slice->rows[c] == walk.group) continue;
        next[segment * walk.group + slice->rows[c]] = slice->slots + c;
      }
      std::fill_n(offsets + slice->slots, kSlice * slice->counts[0], static_cast<uint8_t>(kBlock));
    }
  }

  uint16_t Likeness(const Slice& slice) const {
    const int length = slice.counts[0];
    const uint8_t* at = offsets + slice.slots;
    if (length == 0 || slice.counts[kSlice - 1] != length) return 0;
    for (int j = 0; j < kSlice * length; ++j) {
      if (at[j] != at[j - j % kSlice]) return 0;
    }
    for (int j = 0; j < length; j += kPanel) {
      const int first = at[kSlice * j];
      if (j + kPanel > length || first % kPanel != 0 ||
          at[kSlice * (j + kPanel - 1)] - first != kPanel - 1) {
        return kAlike;
      }
    }
    // Panels are multiplied by four neighbouring outputs at once.
    const bool neighbours = slice.rows[0] % kSlice == 0 && slice.rows[3] == slice.rows[0] + 3;
    return neighbours ? kAlike | kPanels : kAlike;
  }
};

// Calls visit(cell of W, cell of W^T, n, k) for the entries of columns [begin, end).
template <typename Index, typename Visit>
void ForEntries(const Made& w, const Made& t, const Index* indices, const int32_t* pointers,
                int64_t begin, int64_t end, const Visit& visit) {
  const int64_t stride = w.walk.group, t_stride = t.walk.blocks * t.walk.group;
  const int64_t t_first = begin / kBlock * t.walk.group;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t first = n / kGroup * w.walk.blocks * stride + n % kGroup;
    for (int32_t i = pointers[n]; i < pointers[n + 1]; ++i) {
      const uint32_t k = static_cast<uint32_t>(indices[i]);
      visit(first + k / kBlock * stride, t_first + k / kGroup * t_stride + k % kGroup, n, k);
    }
  }
}

template <typename Index>
std::string Make(ffi::ThreadPool& pool, const Index* indices, const int32_t* pointers, Made& w,
                 Made& t) {
  const int64_t columns = w.walk.rows, chunks = (columns + kChunk - 1) / kChunk;
  std::atomic<bool> sorted{true};
  ParallelFor(pool, chunks, [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk, end = std::min(columns, begin + kChunk);
    bool rising = true;
    for (int64_t n = begin; n < end; ++n) {
      for (int32_t i = pointers[n] + 1; i < pointers[n + 1]; ++i) {
        rising = rising && indices[i] > indices[i - 1];
      }
    }
    if (!rising) {  // nor would the counts fit
      sorted = false;
      return;
    }
    ForEntries(w, t, indices, pointers, begin, end,
               [&](int64_t cell, int64_t t_cell, int64_t, uint32_t) {
                 ++w.counts[cell];
                 ++t.counts[t_cell];
               });
  });
  if (!sorted) return "the indices of an output do not rise";
  for (Made* made : {&w, &t}) {
    std::vector<int64_t> before(made->Segments());
    ParallelFor(pool, made->Segments(), [&](int64_t s) { before[s] = made->Sort(s); });
    int64_t used = 0;
    for (int64_t& slots : before) used += std::exchange(slots, used);
    if (used > made->room) return "there is no room for the slots of a walk";
    ParallelFor(pool, made->Segments(), [&](int64_t s) { made->Place(s, before[s]); });
    std::fill(made->offsets + used, made->offsets + made->room, static_cast<uint8_t>(kBlock));
  }
  ParallelFor(pool, chunks, [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk, end = std::min(columns, begin + kChunk);
    ForEntries(w, t, indices, pointers, begin, end,
               [&](int64_t cell, int64_t t_cell, int64_t n, uint32_t k) {
                 w.offsets[w.next[cell]] = static_cast<uint8_t>(k % kBlock);
                 w.next[cell] += kSlice;
                 t.offsets[t.next[t_cell]] = static_cast<uint8_t>(n % kBlock);
                 t.next[t_cell] += kSlice;
               });
  });
  for (Made* made : {&w, &t}) {
    ParallelFor(pool, made->Segments(), [&](int64_t s) {
      Slice* slice = made->slices + s * made->PerSegment();
      for (const Slice* end = slice + made->PerSegment(); slice < end; ++slice) {
        slice->rows[0] |= made->Likeness(*slice);
      }
    });
  }
  return "";
}

// Slices [S, 4] are rows of `Slice`. `t_pointers` [K + 1] has the number of inputs.
ffi::Error MakeWalks(ffi::ThreadPool pool, ffi::AnyBuffer indices, ffi::Buffer<ffi::S32> pointers,
                     ffi::Buffer<ffi::S32> t_pointers, ffi::ResultBuffer<ffi::S32> slices,
                     ffi::ResultBuffer<ffi::U8> offsets, ffi::ResultBuffer<ffi::S32> t_slices,
                     ffi::ResultBuffer<ffi::U8> t_offsets) {
  const int64_t inputs = static_cast<int64_t>(t_pointers.element_count()) - 1;
  const int64_t outputs = static_cast<int64_t>(pointers.element_count()) - 1;
  std::string wrong = Wrong(pool, indices, pointers, indices.element_count(), inputs);
  if (!wrong.empty()) return BadPattern(wrong);
  const auto fits = [](int64_t rows, int64_t columns, size_t words) {
    return SlicesOf(AsWalk(nullptr, nullptr, rows, columns)) * sizeof(Slice) == words * 4;
  };
  if (!fits(outputs, inputs, slices->element_count()) ||
      !fits(inputs, outputs, t_slices->element_count())) {
    return BadPattern("there are not as many slices as outputs and inputs need");
  }
  Made w(outputs, inputs, slices, offsets), t(inputs, outputs, t_slices, t_offsets);
  const int32_t* at = pointers.typed_data();
  wrong = indices.element_type() == ffi::DataType::U16
              ? Make(pool, static_cast<const uint16_t*>(indices.untyped_data()), at, w, t)
              : Make(pool, static_cast<const int32_t*>(indices.untyped_data()), at, w, t);
  return wrong.empty() ? ffi::Error::Success() : BadPattern(wrong);
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_walk, wafer::MakeWalks,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::U8>>());
