// Cycles of a timing program (wafer/fabric/planes.py) in words of 512 PEs along x. A cycle is two
// passes over the blocks: what leaves each router depends on the neighbors' room, what arrives on
// their departures. A block is visited only if it or a neighbor changed in the cycle before: a step
// is a function of the state alone.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are only passed inside this file

namespace wafer {
namespace {

enum { W, E, S, N, RAMP };
using V = uint64_t __attribute__((vector_size(64)));
// In an array of NumPy's. Clang ignores `aligned` in a type that `using` names.
typedef uint64_t Mask __attribute__((vector_size(64), aligned(8)));
static_assert(alignof(Mask) == 8);
constexpr V kZero = {0, 0, 0, 0, 0, 0, 0, 0};
constexpr int64_t kMostCycles = 10'000'000, kFault = -1, kStuck = -2;

struct Sizes {
  int32_t rows, blocks, colors, ramp, bits, slots, ports, reads, writes;
};
struct Pair {
  int32_t a, color;
};

inline bool any(const V& v) {
  return (v[0] | v[1] | v[2] | v[3] | v[4] | v[5] | v[6] | v[7]) != 0;
}

// The last 8 - skip words of a, then the first `skip` of b. Clang has no __builtin_shuffle and
// GCC 11 no __builtin_shufflevector.
template <int skip>
inline V join(const V& a, const V& b) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, skip, skip + 1, skip + 2, skip + 3, skip + 4, skip + 5,
                                 skip + 6, skip + 7);
#else
  using I = int64_t __attribute__((vector_size(64)));
  const I pick = {skip,     skip + 1, skip + 2, skip + 3,
                  skip + 4, skip + 5, skip + 6, skip + 7};
  return __builtin_shuffle(a, b, pick);
#endif
}

// Room of each stage of an elastic pipe of `n` stages, and behind it.
inline void rooms(const V* stages, int n, const V& behind, V* room) {
  room[n] = behind;
  for (int k = n - 1; k >= 0; --k) room[k] = ~stages[k] | room[k + 1];
}

// Moves such a pipe on; returns bits of what moved.
inline V move(V* stages, int n, const V& into, const V* room) {
  V moved = into;
  for (int k = n - 1; k >= 0; --k) {
    moved |= stages[k] & room[k + 1];
    stages[k] = (stages[k] & ~room[k + 1]) | (k ? stages[k - 1] & room[k] : into);
  }
  return moved;
}

class Grid {
 public:
  Grid(const int32_t* header, const Mask* masks) : masks_(masks) {
    std::memcpy(&n_, header, sizeof n_);
    depths_ = header + sizeof n_ / sizeof *header;
    ports_ = reinterpret_cast<const Pair*>(depths_ + n_.colors);
    reads_ = ports_ + n_.ports, writes_ = reads_ + n_.reads;
    at_ = n_.colors * (1 + 2 * n_.ramp);
    for (int c = 0; c < n_.colors; ++c) at_ += depths_[c];
    left_ = at_ + n_.slots, planes_ = left_ + n_.bits;
    inject_ = n_.ports, read_ = inject_ + n_.colors, write_ = read_ + n_.reads;
    exists_ = write_ + n_.writes, counts_ = exists_ + n_.slots;
    kinds_ = counts_ + n_.slots * n_.bits;

    const int64_t cells = int64_t(n_.rows) * n_.blocks;
    const int64_t vectors = cells * (planes_ + n_.colors + 1) + 4 * n_.colors + n_.ramp + 1;
    const int64_t others = n_.colors * sizeof *color_ + 2 * cells * sizeof *changed_;
    const size_t bytes = vectors * sizeof(V) + (others + sizeof(V) - 1) / sizeof(V) * sizeof(V);
    state_ = static_cast<V*>(std::aligned_alloc(sizeof(V), bytes));
    std::memset(static_cast<void*>(state_), 0, bytes);
    go_ = state_ + cells * planes_, scratch_ = go_ + cells * (n_.colors + 1);
    room_ = scratch_ + 4 * n_.colors;
    color_ = reinterpret_cast<int32_t*>(room_ + n_.ramp + 1);
    for (int c = 0, at = 0; c < n_.colors; ++c) color_[c] = at, at += 1 + 2 * n_.ramp + depths_[c];
    changed_ = reinterpret_cast<uint8_t*>(color_ + n_.colors), next_ = changed_ + cells;
    for (int64_t i = 0; i < cells; ++i) {
      const Mask* m = masks_ + i * kinds_;
      V* x = state_ + i * planes_;
      x[at_] = m[exists_];
      for (int k = 0; k < n_.bits; ++k) x[left_ + k] = m[counts_ + k];
    }
    std::memset(changed_, 1, cells);
  }
  ~Grid() { std::free(state_); }
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  int64_t run() {
    int64_t cycles = 0;
    for (; busy(); ++cycles) {
      const bool moved = cycle();
      if (fault_) return kFault;
      if (!moved || cycles == kMostCycles) return kStuck;
    }
    return cycles;
  }

 private:
  int64_t index(int row, int block) const { return int64_t(row) * n_.blocks + block; }
  bool inside(int row, int block) const {
    return row >= 0 && row < n_.rows && block >= 0 && block < n_.blocks;
  }

  bool busy() const {
    for (int64_t i = 0; i < index(n_.rows, 0); ++i)
      for (int slot = 0; slot < n_.slots; ++slot)
        if (any(state_[i * planes_ + at_ + slot])) return true;
    return false;
  }

  // The view, from a block, of a plane of the neighbor on a side; 0 beyond the edge.
  template <class Plane>
  V view(int row, int block, int side, Plane plane) const {
    const auto at = [&](int r, int b) { return inside(r, b) ? plane(index(r, b)) : kZero; };
    switch (side) {
      case N: return at(row - 1, block);
      case S: return at(row + 1, block);
      case E: {
        const V here = at(row, block);
        return (here >> 1) | (join<1>(here, at(row, block + 1)) << 63);
      }
      default: {
        const V here = at(row, block);
        return (here << 1) | (join<7>(at(row, block - 1), here) >> 63);
      }
    }
  }

  bool cycle() {
    const auto near = [&](int row, int block) {
      const auto was = [&](int r, int b) { return inside(r, b) && changed_[index(r, b)]; };
      return was(row, block) || was(row, block - 1) || was(row, block + 1) ||
             was(row - 1, block) || was(row + 1, block);
    };
    for (int row = 0; row < n_.rows; ++row)
      for (int block = 0; block < n_.blocks; ++block)
        if ((next_[index(row, block)] = near(row, block))) leave(row, block);
    bool moved = false;
    for (int row = 0; row < n_.rows; ++row)
      for (int block = 0; block < n_.blocks; ++block) {
        uint8_t& visit = next_[index(row, block)];
        moved |= visit = visit && arrive(row, block);
      }
    uint8_t* const before = changed_;
    changed_ = next_, next_ = before;
    return moved;
  }

  // What leaves each router, of each color; behind them, whose operation takes a step.
  void leave(int row, int block) {
    const int64_t i = index(row, block);
    const V* x = state_ + i * planes_;
    const Mask* m = masks_ + i * kinds_;
    V* go = go_ + i * (n_.colors + 1);
    V used[5] = {kZero, kZero, kZero, kZero, kZero};
    for (int c = 0, k = 0; c < n_.colors; ++c) {
      const int begin = k, two = color_[c] + 1, down = two + 1 + n_.ramp, queue = down + n_.ramp - 1;
      V ok = x[color_[c]];
      for (; k < n_.ports && ports_[k].color == c; ++k) {
        const int p = ports_[k].a;
        if (p == RAMP) {
          rooms(x + down, n_.ramp - 1, ~x[queue + depths_[c] - 1], room_);
          ok &= ~m[k] | room_[0];
        } else {
          ok &= ~(m[k] & view(row, block, p, [&](int64_t j) { return state_[j * planes_ + two]; }));
        }
        ok &= ~(m[k] & used[p]);  // a lower color has the link
      }
      for (int j = begin; j < k; ++j) used[ports_[j].a] |= ok & m[j];
      go[c] = ok;
    }
    V ready = kZero;
    for (int slot = 0; slot < n_.slots; ++slot) ready |= x[at_ + slot];
    for (int k = 0; k < n_.reads; ++k) {
      const V queue = x[color_[reads_[k].color] + 1 + 2 * n_.ramp];
      ready &= ~(x[at_ + reads_[k].a] & m[read_ + k]) | queue;
    }
    for (int k = 0; k < n_.writes; ++k) {
      const V* color = x + color_[writes_[k].color];
      rooms(color + 2, n_.ramp, ~color[1] & m[inject_ + writes_[k].color], room_);
      ready &= ~(x[at_ + writes_[k].a] & m[write_ + k]) | room_[0];
    }
    go[n_.colors] = ready;
  }

  // Moves everything of a block; whether it changed.
  bool arrive(int row, int block) {
    const int64_t i = index(row, block);
    V* x = state_ + i * planes_;
    const Mask* m = masks_ + i * kinds_;
    const V *go = go_ + i * (n_.colors + 1), ready = go[n_.colors];
    V *sends = scratch_, *takes = sends + n_.colors, *got = takes + n_.colors;
    V* to_ce = got + n_.colors;
    for (int k = 0; k < 4 * n_.colors; ++k) scratch_[k] = kZero;
    for (int k = 0; k < n_.reads; ++k)
      takes[reads_[k].color] |= ready & x[at_ + reads_[k].a] & m[read_ + k];
    for (int k = 0; k < n_.writes; ++k)
      sends[writes_[k].color] |= ready & x[at_ + writes_[k].a] & m[write_ + k];
    V moved = ready, clash = kZero;
    for (int k = 0; k < n_.ports; ++k) {
      const int c = ports_[k].color, p = ports_[k].a;
      if (p == RAMP) {
        to_ce[c] = go[c] & m[k];
        continue;
      }
      const V here = view(row, block, p ^ 1, [&](int64_t j) {  // what leaves by E arrives from W
        return go_[j * (n_.colors + 1) + c] & masks_[j * kinds_ + k];
      });
      clash |= got[c] & here;
      got[c] |= here;
    }
    for (int c = 0; c < n_.colors; ++c) {
      V *one = x + color_[c], *two = one + 1, *up = two + 1, *down = up + n_.ramp;
      V* queue = down + n_.ramp - 1;
      rooms(up, n_.ramp, ~*two & m[inject_ + c], room_);
      const V injected = up[n_.ramp - 1] & room_[n_.ramp];
      clash |= got[c] & injected;
      got[c] |= injected;
      moved |= go[c] | got[c] | takes[c] | move(up, n_.ramp, sends[c], room_);
      const V kept = *one & ~go[c];
      *one = got[c] | *two | kept;
      *two = (kept & got[c]) | (*two & ~go[c]);
      rooms(down, n_.ramp - 1, ~queue[depths_[c] - 1], room_);
      const V push = n_.ramp > 1 ? down[n_.ramp - 2] & room_[n_.ramp - 1] : to_ce[c];
      moved |= move(down, n_.ramp - 1, to_ce[c], room_);
      const V grow = push & ~takes[c], shrink = takes[c] & ~push;
      V below = ~kZero;
      for (int k = 0; k < depths_[c]; ++k) {  // level k: more than k words
        const V level = queue[k], above = k + 1 < depths_[c] ? queue[k + 1] : kZero;
        queue[k] = (level & ~(grow | shrink)) | (below & grow) | (above & shrink);
        below = level;
      }
    }
    count_down(x, m, ready);
    fault_ |= any(clash);
    return any(moved);
  }

  void count_down(V* x, const Mask* m, const V& ready) const {
    V *at = x + at_, *left = x + left_, borrow = ready;
    for (int k = 0; k < n_.bits; ++k) {
      const V bit = left[k];
      left[k] = bit ^ borrow;
      borrow &= ~bit;
    }
    if (!any(borrow)) return;
    const V ends = borrow;  // the last cycle of a slot: those that are counted come to the next one
    for (int k = 0; k < n_.bits; ++k) left[k] &= ~ends;
    for (int slot = n_.slots - 1; slot > 0; --slot) {
      const V enters = at[slot - 1] & ends & m[exists_ + slot];
      at[slot] = (at[slot] & ~ends) | enters;
      for (int k = 0; k < n_.bits; ++k) left[k] |= enters & m[counts_ + slot * n_.bits + k];
    }
    at[0] &= ~ends;
  }

  Sizes n_;
  const int32_t* depths_;                 // words of each color's input queue
  const Pair *ports_, *reads_, *writes_;  // (port, color) by color; (slot, color)
  const Mask* masks_;                     // of each block: ports, inject, reads, writes, exists, counts
  // Where a block's planes begin: of each color one word held, two words held, the ramp up and down,
  // levels of the queue; the current slot; the bits of what it has left. And where its masks begin.
  int32_t* color_;
  int at_, left_, planes_, inject_, read_, write_, exists_, counts_, kinds_;
  V *state_, *go_, *scratch_, *room_;
  uint8_t *changed_, *next_;  // blocks that changed in the cycle before, and in this one
  bool fault_ = false;
};

}  // namespace
}  // namespace wafer

// Cycles until every operation is done; -1: two wavelets of a color arrived at once; -2: some
// operation can never run.
extern "C" int64_t WAFER_TARGET(const int32_t* header, const void* masks) {
  return wafer::Grid(header, static_cast<const wafer::Mask*>(masks)).run();
}
