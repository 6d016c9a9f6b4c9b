// Topology of sparse weights: patterns of masks, and the RigL/SET update in compressed storage, as
// XLA FFI handlers for the CPU.
//
// Selection works on keys: the bits of a float folded so that unsigned order is the order of the
// floats. Two histogram passes over 16 bits each find the k-th largest key exactly; equal keys go
// to the lowest index in canonical order (by column n, then row k of a [K, N] weight).
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "runtime.h"
#include "select.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

constexpr uint32_t kNever = 0;           // below every key: a position that cannot be chosen
constexpr uint32_t kAlways = 0xffffffff;  // above every key of a number

// The same with NaN as +inf and -inf as the lowest number, so that kNever and kAlways are free.
inline uint32_t NumberKey(float x) {
  const uint32_t magnitude = Bits(x) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0xff800000u;
  return std::max(Key(x), 0x00800000u);
}

// --- patterns -------------------------------------------------------------------------------

// The stored entries by row k of W, in the order of their columns n.
struct EntriesByRow {
  struct Entry {
    int32_t column, place;  // `place` in the values
  };
  std::vector<int32_t> pointers;  // [rows + 1]
  std::vector<Entry> entries;

  template <typename Index>
  EntriesByRow(ffi::ThreadPool& pool, const Index* indices, const int32_t* columns_begin,
               int64_t rows, int64_t columns)
      : pointers(rows + 1), entries(columns_begin[columns]) {
    const int64_t parts = Parts(pool, columns);
    std::vector<std::vector<int32_t>> next(parts);
    const auto range = [&](int64_t part) {
      const Share share = ShareOf(columns, part, parts);
      return std::pair(columns_begin[share.begin], columns_begin[share.end]);
    };
    ParallelFor(pool, parts, [&](int64_t part) {
      next[part].assign(rows, 0);
      const auto [begin, end] = range(part);
      for (int32_t i = begin; i < end; ++i) ++next[part][indices[i]];
    });
    int32_t at = 0;
    for (int64_t k = 0; k < rows; ++k) {
      pointers[k] = at;
      for (auto& mine : next) at += std::exchange(mine[k], at);
    }
    pointers[rows] = at;
    ParallelFor(pool, parts, [&](int64_t part) {
      const Share share = ShareOf(columns, part, parts);
      for (int64_t n = share.begin; n < share.end; ++n) {
        for (int32_t i = columns_begin[n]; i < columns_begin[n + 1]; ++i) {
          entries[next[part][indices[i]]++] = {static_cast<int32_t>(n), i};
        }
      }
    });
  }
};

struct PatternOut {
  void* indices;
  bool wide;
  int32_t* pointers;
  int32_t* t_pointers;
  int64_t nnz;
};

void Put(void* out, bool wide, int64_t at, int64_t value) {
  if (wide) {
    static_cast<int32_t*>(out)[at] = static_cast<int32_t>(value);
  } else {
    static_cast<uint16_t*>(out)[at] = static_cast<uint16_t>(value);
  }
}

// Builds a pattern from rows of chosen columns. `choose(row, columns, sources)` writes the chosen
// columns of one row k in order, and for each the place of its value in the old arrays or -1;
// it returns how many. `source` [nnz], when given, receives those places in canonical order.
template <typename Choose>
void BuildPattern(ffi::ThreadPool& pool, int64_t rows, int64_t columns, const Choose& choose,
                  const PatternOut& out, int32_t* source) {
  struct Chosen {
    std::vector<int32_t> columns, sources, rows, per_column;
  };
  const int64_t parts = Parts(pool, rows);
  std::vector<Chosen> chosen(parts);
  ParallelFor(pool, parts, [&](int64_t part) {
    Chosen& mine = chosen[part];
    const Share share = ShareOf(rows, part, parts);
    mine.per_column.assign(columns, 0);
    int64_t size = 0;
    for (int64_t k = share.begin; k < share.end; ++k) {
      if (static_cast<int64_t>(mine.columns.size()) < size + columns) {
        mine.columns.resize(2 * size + 16 * columns);
        mine.sources.resize(2 * size + 16 * columns);
      }
      const int64_t n = choose(k, mine.columns.data() + size, mine.sources.data() + size);
      for (int64_t i = size; i < size + n; ++i) ++mine.per_column[mine.columns[i]];
      mine.rows.push_back(static_cast<int32_t>(n));
      size += n;
    }
    mine.columns.resize(size);
    mine.sources.resize(size);
  });
  // Where each part's share of a column starts; the totals are the column pointers.
  int64_t at = 0;
  for (int64_t n = 0; n < columns; ++n) {
    out.pointers[n] = static_cast<int32_t>(std::min(at, out.nnz));
    for (Chosen& part : chosen) {
      const int32_t count = part.per_column[n];
      part.per_column[n] = static_cast<int32_t>(at);
      at += count;
    }
  }
  out.pointers[columns] = static_cast<int32_t>(std::min(at, out.nnz));
  // A mask with more than nnz kept weights loses the last ones in canonical order.
  ParallelFor(pool, parts, [&](int64_t part) {
    Chosen& mine = chosen[part];
    int64_t i = 0;
    const Share share = ShareOf(rows, part, parts);
    for (int64_t k = share.begin; k < share.end; ++k) {
      int32_t kept = 0;
      for (const int64_t end = i + mine.rows[k - share.begin]; i < end; ++i) {
        const int32_t place = mine.per_column[mine.columns[i]]++;
        if (place >= out.nnz) continue;
        Put(out.indices, out.wide, place, k);
        if (source != nullptr) source[place] = mine.sources[i];
        ++kept;
      }
      out.t_pointers[k + 1] = kept;
    }
  });
  out.t_pointers[0] = 0;
  std::partial_sum(out.t_pointers, out.t_pointers + rows + 1, out.t_pointers);
  for (int64_t i = out.t_pointers[rows]; i < out.nnz; ++i) {  // slack
    Put(out.indices, out.wide, i, 0);
    if (source != nullptr) source[i] = -1;
  }
}

// --- RigL and SET ---------------------------------------------------------------------------

// Marks the `keep` active values of largest magnitude; ties to the lowest place.
void MarkSurvivors(ffi::ThreadPool& pool, const float* values, int64_t active, int64_t keep,
                   uint8_t* survives) {
  constexpr int64_t kChunk = 1 << 13;
  const int64_t chunks = (active + kChunk - 1) / kChunk;
  const auto magnitude = [&](int64_t i) { return Key(std::abs(values[i])); };
  const Threshold limit =
      FindThreshold(pool, chunks, kChunk, keep, [&](int64_t chunk, uint32_t* keys) {
        const int64_t begin = chunk * kChunk, end = std::min(active, begin + kChunk);
        for (int64_t i = begin; i < end; ++i) keys[i - begin] = magnitude(i);
        return end - begin;
      });
  std::vector<int64_t> ties(chunks + 1);  // before each chunk
  ParallelFor(pool, chunks, [&](int64_t chunk) {
    int64_t count = 0;
    for (int64_t i = chunk * kChunk; i < std::min(active, (chunk + 1) * kChunk); ++i) {
      const uint32_t key = magnitude(i);
      survives[i] = limit.Above(key);
      count += key == limit.key;
    }
    ties[chunk + 1] = count;
  });
  for (int64_t chunk = 0; chunk < chunks; ++chunk) ties[chunk + 1] += ties[chunk];
  ParallelFor(pool, chunks, [&](int64_t chunk) {
    int64_t rank = ties[chunk];
    if (rank >= limit.ties || ties[chunk + 1] == rank) return;
    for (int64_t i = chunk * kChunk; i < std::min(active, (chunk + 1) * kChunk); ++i) {
      if (magnitude(i) == limit.key) survives[i] = rank++ < limit.ties;
    }
  });
}

// The scores of one row k as keys, survivors marked with `mark`.
struct GrowRows {
  const float* scores;
  int64_t columns;
  const EntriesByRow& old;
  const uint8_t* survives;

  void Fill(int64_t k, uint32_t mark, uint32_t* keys) const {
    const float* row = scores + k * columns;
    for (int64_t n = 0; n < columns; ++n) keys[n] = NumberKey(row[n]);
    for (int32_t i = old.pointers[k]; i < old.pointers[k + 1]; ++i) {
      const auto [column, place] = old.entries[i];
      if (survives[place]) keys[column] = mark;
    }
  }
};

// What a column takes: keys above `key`, and in rows below `tie_rows` those equal to it.
struct Limits {
  std::vector<uint32_t> key;
  std::vector<int32_t> tie_rows;

  explicit Limits(int64_t columns) : key(columns), tie_rows(columns) {}

  // Columns [begin, end) share a threshold; its ties end at the position (column, row).
  void Set(int64_t begin, int64_t end, uint32_t shared, int64_t rows, int64_t column, int64_t row) {
    std::fill(key.begin() + begin, key.begin() + end, shared);
    std::fill(tie_rows.begin() + begin, tie_rows.begin() + column, static_cast<int32_t>(rows));
    std::fill(tie_rows.begin() + column, tie_rows.begin() + end, 0);
    if (column < end) tie_rows[column] = static_cast<int32_t>(row);
  }
};

// Limits of the `want` highest scores of the whole weight.
Limits FindLimits(ffi::ThreadPool& pool, const GrowRows& grow, int64_t rows, int64_t want) {
  Limits limits(grow.columns);
  const Threshold limit =
      FindThreshold(pool, rows, grow.columns, want, [&](int64_t k, uint32_t* keys) {
        grow.Fill(k, kNever, keys);
        return grow.columns;
      });
  const bool all = limit.ties == limit.equal;
  limits.Set(0, grow.columns, limit.key, rows, all ? grow.columns : 0, 0);
  if (all || limit.ties == 0) return limits;
  const int64_t parts = Parts(pool, rows);
  std::vector<std::vector<int64_t>> counts(parts);
  ParallelFor(pool, parts, [&](int64_t part) {
    counts[part].assign(grow.columns, 0);
    std::vector<uint32_t> keys(grow.columns);
    const Share share = ShareOf(rows, part, parts);
    for (int64_t k = share.begin; k < share.end; ++k) {
      grow.Fill(k, kNever, keys.data());
      for (int64_t n = 0; n < grow.columns; ++n) counts[part][n] += keys[n] == limit.key;
    }
  });
  int64_t left = limit.ties, column = 0, row = 0;
  for (; column < grow.columns; ++column) {
    int64_t here = 0;
    for (const auto& mine : counts) here += mine[column];
    if (here > left) break;
    left -= here;
  }
  std::vector<uint32_t> keys(grow.columns);
  for (; left > 0 && row < rows; ++row) {
    grow.Fill(row, kNever, keys.data());
    left -= keys[column] == limit.key;
  }
  limits.Set(0, grow.columns, limit.key, rows, column, row);
  return limits;
}

// Chooses within each of `groups` equal groups of neighbouring columns: marks the `keep` largest
// values in `survives`, and returns the limits of what fills the group up to `total`.
template <typename Index>
Limits ChooseGroups(ffi::ThreadPool& pool, const int32_t* pointers, const Index* indices,
                    const float* values, const float* scores, int64_t rows, int64_t columns,
                    int64_t groups, int64_t keep, int64_t total, uint8_t* survives) {
  constexpr int64_t kTile = 16;  // columns of a cache line
  Limits limits(columns);
  const int64_t width = columns / groups, unit = std::max<int64_t>(1, kTile / width);
  const int64_t units = (groups + unit - 1) / unit, height = std::max<int64_t>(rows, 1);
  ParallelFor(pool, units, [&](int64_t u) {
    thread_local std::vector<uint32_t> keys, scratch;
    const int64_t begin = u * unit * width, end = std::min(columns, begin + unit * width);
    keys.resize((end - begin) * rows);
    for (int64_t tile = begin; tile < end; tile += kTile) {
      for (int64_t k = 0; k < rows; ++k) {
        for (int64_t n = tile; n < std::min(end, tile + kTile); ++n) {
          keys[(n - begin) * rows + k] = NumberKey(scores[k * columns + n]);
        }
      }
    }
    for (int64_t first = begin; first < end; first += width) {
      const int64_t at = pointers[first], active = pointers[first + width] - at;
      scratch.resize(active);
      for (int64_t i = 0; i < active; ++i) scratch[i] = Key(std::abs(values[at + i]));
      const Threshold least = RowThreshold(scratch.data(), active, keep);
      int64_t ties = least.ties;
      for (int64_t i = 0; i < active; ++i) {
        const uint32_t key = Key(std::abs(values[at + i]));
        survives[at + i] = least.Above(key) || (key == least.key && ties-- > 0);
      }
      uint32_t* mine = keys.data() + (first - begin) * rows;
      for (int64_t n = first; n < first + width; ++n) {
        for (int64_t i = pointers[n]; i < pointers[n + 1]; ++i) {
          if (survives[i]) mine[(n - first) * rows + indices[i]] = kNever;
        }
      }
      scratch.assign(mine, mine + width * rows);
      const int64_t missing = total - std::min(keep, active);
      const Threshold limit = RowThreshold(scratch.data(), width * rows, missing);
      int64_t tie_end = 0;
      for (ties = limit.ties; ties > 0; ++tie_end) ties -= mine[tie_end] == limit.key;
      limits.Set(first, first + width, limit.key, rows, first + tie_end / height, tie_end % height);
    }
  });
  return limits;
}

// Columns of row k in the new topology, with the old places of those that were active.
int64_t ChooseRow(const GrowRows& grow, const Limits& limits, int64_t k, uint32_t* keys,
                  int32_t* columns, int32_t* sources) {
  grow.Fill(k, kAlways, keys);
  int64_t count = 0;
  for (int64_t n = 0; n < grow.columns; ++n) {
    columns[count] = static_cast<int32_t>(n);
    count += keys[n] > limits.key[n] || keys[n] == kAlways ||
             (keys[n] == limits.key[n] && k < limits.tie_rows[n]);
  }
  const auto* entry = grow.old.entries.data() + grow.old.pointers[k];
  const auto* last = grow.old.entries.data() + grow.old.pointers[k + 1];
  for (int64_t c = 0; c < count; ++c) {
    while (entry < last && entry->column < columns[c]) ++entry;
    sources[c] = entry < last && entry->column == columns[c] ? entry->place : -1;
  }
  return count;
}

// --- handlers -------------------------------------------------------------------------------

PatternOut OutOf(ffi::Result<ffi::AnyBuffer>& indices, ffi::ResultBuffer<ffi::S32>& pointers,
                 ffi::ResultBuffer<ffi::S32>& t_pointers) {
  return {indices->untyped_data(), indices->element_type() != ffi::DataType::U16,
          pointers->typed_data(), t_pointers->typed_data(),
          static_cast<int64_t>(indices->element_count())};
}

ffi::Error PatternOfMask(ffi::ThreadPool pool, ffi::Buffer<ffi::PRED> mask,
                         ffi::Result<ffi::AnyBuffer> indices, ffi::ResultBuffer<ffi::S32> pointers,
                         ffi::ResultBuffer<ffi::S32> t_pointers) {
  if (!IsMatrix(mask, static_cast<int64_t>(t_pointers->element_count()) - 1,
                static_cast<int64_t>(pointers->element_count()) - 1)) {
    return BadPattern("the mask does not have the pattern's shape");
  }
  const int64_t rows = mask.dimensions()[0], columns = mask.dimensions()[1];
  const auto choose = [&](int64_t k, int32_t* chosen, int32_t*) {
    const bool* row = mask.typed_data() + k * columns;
    int64_t count = 0;
    for (int64_t n = 0; n < columns; ++n) {
      chosen[count] = static_cast<int32_t>(n);
      count += row[n];
    }
    return count;
  };
  BuildPattern(pool, rows, columns, choose, OutOf(indices, pointers, t_pointers), nullptr);
  return ffi::Error::Success();
}

// In each of `groups` equal groups of neighbouring columns, keeps the counts[0] largest |values| and
// grows positions at the highest scores among all others until it holds counts[0] + counts[1].
// `source` says where each new value comes from in the old arrays, -1 if it was not there.
ffi::Error UpdatePattern(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> values,
                         ffi::AnyBuffer indices, ffi::Buffer<ffi::S32> pointers,
                         ffi::Buffer<ffi::S32> t_pointers, ffi::Buffer<ffi::F32> scores,
                         ffi::Buffer<ffi::S32> counts, ffi::Result<ffi::AnyBuffer> new_indices,
                         ffi::ResultBuffer<ffi::S32> new_pointers,
                         ffi::ResultBuffer<ffi::S32> new_t_pointers,
                         ffi::ResultBuffer<ffi::S32> source, int64_t groups) {
  const int64_t rows = static_cast<int64_t>(t_pointers.element_count()) - 1;
  const int64_t columns = static_cast<int64_t>(pointers.element_count()) - 1;
  const int64_t nnz = values.element_count();
  std::string wrong = Wrong(pool, indices, pointers, nnz, rows);
  if (wrong.empty() && (!IsMatrix(scores, rows, columns) || counts.element_count() != 2)) {
    wrong = "the scores do not have the pattern's shape";
  }
  if (wrong.empty() && (groups < 1 || groups > std::max<int64_t>(columns, 1) || columns % groups)) {
    wrong = "the groups do not divide the columns";
  }
  const auto same = [](const auto& one, auto& other) {
    return one.element_count() == other->element_count();
  };
  if (wrong.empty() && !(same(pointers, new_pointers) && same(t_pointers, new_t_pointers) &&
                         same(values, new_indices) && same(values, source))) {
    wrong = "the new pattern does not have the old one's shape";
  }
  if (!wrong.empty()) return BadPattern(wrong);
  const int64_t most = std::min(nnz, rows * columns) / groups;
  const int64_t kept = std::clamp<int64_t>(counts.typed_data()[0], 0, most);
  const int64_t total = kept + std::clamp<int64_t>(counts.typed_data()[1], 0, most - kept);
  const int32_t* starts = pointers.typed_data();
  std::vector<uint8_t> survives(nnz);
  const auto update = [&](const auto* index) {
    const EntriesByRow old(pool, index, starts, rows, columns);
    const GrowRows grow{scores.typed_data(), columns, old, survives.data()};
    Limits limits(0);
    if (groups == 1) {
      const int64_t active = starts[columns];
      MarkSurvivors(pool, values.typed_data(), active, kept, survives.data());
      limits = FindLimits(pool, grow, rows, total - std::min(kept, active));
    } else {
      limits = ChooseGroups(pool, starts, index, values.typed_data(), scores.typed_data(), rows,
                            columns, groups, kept, total, survives.data());
    }
    const auto choose = [&](int64_t k, int32_t* chosen, int32_t* sources) {
      thread_local std::vector<uint32_t> keys;
      keys.resize(columns);
      return ChooseRow(grow, limits, k, keys.data(), chosen, sources);
    };
    BuildPattern(pool, rows, columns, choose, OutOf(new_indices, new_pointers, new_t_pointers),
                 source->typed_data());
  };
  if (indices.element_type() == ffi::DataType::U16) {
    update(static_cast<const uint16_t*>(indices.untyped_data()));
  } else {
    update(static_cast<const int32_t*>(indices.untyped_data()));
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_pattern_of_mask, wafer::PatternOfMask,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_sparse_update_pattern, wafer::UpdatePattern,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Attr<int64_t>("groups"));
