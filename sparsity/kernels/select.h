// The k-th largest of many floats, by histograms of their bits.
#ifndef WAFER_SPARSITY_SELECT_H_
#define WAFER_SPARSITY_SELECT_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {

namespace ffi = xla::ffi;

inline uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// Order of `selection.topk_mask`: -0 equals 0, NaN by its bits (a positive one is the highest).
inline uint32_t Key(float x) {
  const uint32_t bits = Bits(x) == 0x80000000u ? 0 : Bits(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The k-th largest key, and how many of the keys equal to it belong to the k.
struct Threshold {
  uint32_t key = 0xffffffff;
  int64_t ties = 0;
  int64_t equal = 0;

  bool Above(uint32_t k) const { return k > key; }
};

// Finds the threshold of the `want` largest of n keys byte by byte, among ever fewer candidates,
// which it moves to the front of `keys`. By one thread; `equal` is not counted.
inline Threshold RowThreshold(uint32_t* keys, int64_t n, int64_t want) {
  Threshold limit;
  int64_t candidates = n, left = std::min(want, n);
  if (left <= 0) return limit;
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t counts[256] = {};
    for (int64_t i = 0; i < candidates; ++i) ++counts[keys[i] >> shift & 0xff];
    uint32_t byte = 255;
    while (byte > 0 && counts[byte] < left) left -= counts[byte--];
    int64_t stay = 0;
    for (int64_t i = 0; i < candidates; ++i) {
      const uint32_t key = keys[i];
      keys[stay] = key;
      stay += (key >> shift & 0xff) == byte;
    }
    candidates = stay;
  }
  limit.key = keys[0];
  limit.ties = left;
  return limit;
}

// A contiguous share of `items` for one of `parts` workers.
struct Share {
  int64_t begin, end;
};
inline Share ShareOf(int64_t items, int64_t part, int64_t parts) {
  return {items * part / parts, items * (part + 1) / parts};
}

inline int64_t Parts(ffi::ThreadPool& pool, int64_t items) {
  return std::max<int64_t>(1, std::min(pool.num_threads(), items));
}

// Finds the threshold of the `want` largest keys. `fill(row, keys)` writes the keys of a row and
// returns how many; rows have at most `width` keys.
template <typename Fill>
Threshold FindThreshold(ffi::ThreadPool& pool, int64_t rows, int64_t width, int64_t want,
                        const Fill& fill) {
  constexpr int kBuckets = 1 << 16;
  Threshold found;
  if (want <= 0) return found;
  const int64_t parts = Parts(pool, rows);
  std::vector<int64_t> total(kBuckets);
  const auto histogram = [&](auto bucket_of) {
    std::vector<std::vector<uint32_t>> counts(parts);
    ParallelFor(pool, parts, [&](int64_t part) {
      std::vector<uint32_t>& mine = counts[part];
      mine.assign(kBuckets + 1, 0);  // the last one takes what does not count
      std::vector<uint32_t> keys(width);
      const Share share = ShareOf(rows, part, parts);
      for (int64_t row = share.begin; row < share.end; ++row) {
        const int64_t n = fill(row, keys.data());
        for (int64_t i = 0; i < n; ++i) ++mine[bucket_of(keys[i])];
      }
    });
    for (int b = 0; b < kBuckets; ++b) {
      total[b] = 0;
      for (const auto& mine : counts) total[b] += mine[b];
    }
  };
  const auto descend = [&](int64_t& left) {  // the bucket that holds the left-th largest
    int b = kBuckets - 1;
    while (b > 0 && total[b] < left) left -= total[b--];
    return static_cast<uint32_t>(b);
  };
  int64_t left = want;
  histogram([](uint32_t key) { return key >> 16; });
  const uint32_t high = descend(left);
  histogram([high](uint32_t key) {
    return key >> 16 == high ? key & 0xffff : static_cast<uint32_t>(kBuckets);
  });
  const uint32_t low = descend(left);
  found.key = high << 16 | low;
  found.ties = left;
  found.equal = total[low];
  return found;
}

}  // namespace wafer

#endif  // WAFER_SPARSITY_SELECT_H_
