// One cycle is two passes over blocks of 512 PEs: what leaves each router (pass A) depends on the
// neighbours' room, what arrives (pass B) on the neighbours' departures. The rules are those of
// planes.py, which is the reference. Rows that exchange nothing run one after another, each to its
// end, with all their planes in the first-level cache. A block is visited only if it or a
// neighbour changed in the cycle before: a step is a function of the state alone.
#include "words.h"

#include <cstdlib>

namespace wafer {
namespace {

enum { W, E, S, N, RAMP };
constexpr V kZero = {0, 0, 0, 0, 0, 0, 0, 0};
constexpr V kOnes = {~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull};

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

// out[x] = plane[x + 1]; `next` is the block to the east.
inline V from_east(const V& v, const V& next) { return (v >> 1) | (join<1>(v, next) << 63); }

// out[x] = plane[x - 1]; `previous` is the block to the west.
inline V from_west(const V& v, const V& previous) {
  return (v << 1) | (join<7>(previous, v) >> 63);
}

// A zeroed array, aligned for vectors.
template <class T>
class Array {
 public:
  explicit Array(int64_t n) : data_(static_cast<T*>(std::aligned_alloc(64, bytes(n)))) {
    __builtin_memset(data_, 0, bytes(n));
  }
  ~Array() { std::free(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  static size_t bytes(int64_t n) { return (n * sizeof(T) + 64) / 64 * 64; }
  T* data_;
};

int planes_of(const Shape& s) {
  int planes = (2 + s.ramp + s.ramp - 1) * s.colors + s.slots + s.bits;
  for (int c = 0; c < s.colors; ++c) planes += s.depths[c];
  return planes;
}

class Grid {
 public:
  Grid(const Shape& shape, const V* masks, int first, int last)
      : s_(shape),
        rows_(last - first),
        blocks_(shape.blocks),
        planes_(planes_of(shape)),
        state_(int64_t(rows_) * blocks_ * planes_),
        go_(int64_t(rows_) * blocks_ * (shape.colors + 1)),
        changed_(int64_t(rows_) * blocks_),
        visit_(int64_t(rows_) * blocks_) {
    offset();
    const int64_t cells = int64_t(rows_) * blocks_;
    masks_ = masks + int64_t(first) * blocks_ * s_.masks();
    for (int64_t cell = 0; cell < cells; ++cell) {
      V* x = &state_[cell * planes_];
      const V* m = masks_ + cell * s_.masks();
      x[at_] = m[exists_];
      for (int k = 0; k < s_.bits; ++k) x[count_ + k] = m[counts_ + k];
      changed_[cell] = 1;
    }
  }

  // Runs the rows together, all in step.
  Result run() {
    Result result;
    while (result.cycles < s_.max_cycles) {
      if (!busy(0, rows_)) return result;
      if (!cycle(0, rows_, &result)) return finish(result);
      ++result.cycles;
      if (result.fault) return result;
    }
    return finish(result);
  }

  // Runs each row to its own end.
  Result run_apart() {
    Result all;
    for (int row = 0; row < rows_; ++row) {
      Result one;
      while (busy(row, row + 1) && one.cycles < s_.max_cycles && !one.fault) {
        if (!cycle(row, row + 1, &one)) break;
        ++one.cycles;
      }
      if (busy(row, row + 1) && !one.fault) one.stuck = true;
      all.cycles = one.cycles > all.cycles ? one.cycles : all.cycles;
      all.fault |= one.fault;
      all.stuck |= one.stuck;
    }
    return all;
  }

 private:
  void offset() {
    int at = 0;
    router_ = at, at += 2 * s_.colors;
    up_ = at, at += s_.ramp * s_.colors;
    down_ = at, at += (s_.ramp - 1) * s_.colors;
    for (int c = 0; c < s_.colors; ++c) queue_[c] = at, at += s_.depths[c];
    at_ = at, at += s_.slots;
    count_ = at;
    int m = s_.n_ports;
    inject_ = m, m += s_.colors;
    reads_ = m, m += s_.n_reads;
    writes_ = m, m += s_.n_writes;
    exists_ = m, m += s_.slots;
    counts_ = m;
  }

  Result finish(Result result) {
    result.stuck = busy(0, rows_);
    return result;
  }

  bool busy(int first, int last) const {
    for (int64_t cell = int64_t(first) * blocks_; cell < int64_t(last) * blocks_; ++cell) {
      const V* x = &state_[cell * planes_];
      V at = x[at_];
      for (int i = 1; i < s_.slots; ++i) at |= x[at_ + i];
      if (any(at)) return true;
    }
    return false;
  }

  const V* cell(int row, int block) const {
    if (row < 0 || row >= rows_ || block < 0 || block >= blocks_) return nullptr;
    return &state_[(int64_t(row) * blocks_ + block) * planes_];
  }

  // The view, from (row, block), of a plane of the neighbour on a side.
  template <class Plane>
  V view(int row, int block, int side, Plane plane) const {
    switch (side) {
      case N: return plane(row - 1, block);
      case S: return plane(row + 1, block);
      case E: return from_east(plane(row, block), plane(row, block + 1));
      default: return from_west(plane(row, block), plane(row, block - 1));
    }
  }

  bool cycle(int first, int last, Result* result) {
    for (int row = first; row < last; ++row)
      for (int block = 0; block < blocks_; ++block) {
        const int64_t i = int64_t(row) * blocks_ + block;
        visit_[i] = near(row, block);
        if (visit_[i]) leave(row, block);
      }
    bool moved = false;
    for (int row = first; row < last; ++row)
      for (int block = 0; block < blocks_; ++block) {
        const int64_t i = int64_t(row) * blocks_ + block;
        next_changed(i, visit_[i] ? arrive(row, block, result) : 0);
        moved |= changed_[i] & 2;
      }
    for (int64_t i = int64_t(first) * blocks_; i < int64_t(last) * blocks_; ++i) changed_[i] >>= 1;
    return moved;
  }

  // Bit 0: changed in the cycle before; bit 1: in this one.
  void next_changed(int64_t i, int changed) { changed_[i] = (changed_[i] & 1) | (changed << 1); }

  bool near(int row, int block) const {
    auto was = [&](int r, int b) {
      return r >= 0 && r < rows_ && b >= 0 && b < blocks_ &&
             (changed_[int64_t(r) * blocks_ + b] & 1);
    };
    if (was(row, block) || was(row, block - 1) || was(row, block + 1)) return true;
    return s_.vertical && (was(row - 1, block) || was(row + 1, block));
  }

  // Room of each stage of an elastic pipe of `n` stages; room[n] is given.
  static void rooms(const V* stages, int n, V leaves, V* room) {
    room[n] = leaves;
    for (int k = n - 1; k >= 0; --k) room[k] = ~stages[k] | room[k + 1];
  }

  void leave(int row, int block) {
    const int64_t i = int64_t(row) * blocks_ + block;
    const V* x = &state_[i * planes_];
    const V* m = masks_ + i * s_.masks();
    V* go = &go_[i * (s_.colors + 1)];
    V used[5] = {kZero, kZero, kZero, kZero, kZero}, room[kMaxRamp + 1];
    for (int c = 0; c < s_.colors; ++c) go[c] = x[router_ + 2 * c];
    for (int k = 0; k < s_.n_ports;) {
      const int c = s_.ports[k].a;
      const int begin = k;
      V ok = go[c];
      for (; k < s_.n_ports && s_.ports[k].a == c; ++k) {
        const int p = s_.ports[k].b;
        V free;
        if (p == RAMP) {
          rooms(x + down_ + c * (s_.ramp - 1), s_.ramp - 1, ~x[queue_[c] + s_.depths[c] - 1], room);
          free = room[0];
        } else {
          free = ~view(row, block, p, [&](int r, int b) {
            const V* other = cell(r, b);
            return other ? other[router_ + 2 * c + 1] : kZero;
          });
        }
        ok &= ~m[k] | free;
        if (s_.shared[p]) ok &= ~(m[k] & used[p]);
      }
      for (int j = begin; j < k; ++j)
        if (s_.shared[s_.ports[j].b]) used[s_.ports[j].b] |= ok & m[j];
      go[c] = ok;
    }
    V ready = x[at_];
    for (int slot = 1; slot < s_.slots; ++slot) ready |= x[at_ + slot];
    for (int k = 0; k < s_.n_reads; ++k)
      ready &= ~(x[at_ + s_.reads[k].a] & m[reads_ + k]) | x[queue_[s_.reads[k].b]];
    for (int k = 0; k < s_.n_writes; ++k) {
      const int c = s_.writes[k].b;
      rooms(x + up_ + c * s_.ramp, s_.ramp, ~x[router_ + 2 * c + 1] & m[inject_ + c], room);
      ready &= ~(x[at_ + s_.writes[k].a] & m[writes_ + k]) | room[0];
    }
    go[s_.colors] = ready;
  }

  int arrive(int row, int block, Result* result) {
    const int64_t i = int64_t(row) * blocks_ + block;
    V* x = &state_[i * planes_];
    const V* m = masks_ + i * s_.masks();
    const V* go = &go_[i * (s_.colors + 1)];
    const V ready = go[s_.colors];
    V diff = ready, sends[kMaxColors], takes[kMaxColors], got[kMaxColors], to_ce[kMaxColors];
    for (int c = 0; c < s_.colors; ++c) sends[c] = takes[c] = got[c] = to_ce[c] = kZero;
    for (int k = 0; k < s_.n_reads; ++k)
      takes[s_.reads[k].b] |= ready & x[at_ + s_.reads[k].a] & m[reads_ + k];
    for (int k = 0; k < s_.n_writes; ++k)
      sends[s_.writes[k].b] |= ready & x[at_ + s_.writes[k].a] & m[writes_ + k];
    V clash = kZero;
    for (int k = 0; k < s_.n_ports; ++k) {
      const int c = s_.ports[k].a, p = s_.ports[k].b;
      if (p == RAMP) {
        to_ce[c] = go[c] & m[k];
        continue;
      }
      const int side = p ^ 1;  // what leaves by E arrives from W
      const V here = view(row, block, side, [&](int r, int b) {
        if (!cell(r, b)) return kZero;
        const int64_t j = int64_t(r) * blocks_ + b;
        return go_[j * (s_.colors + 1) + c] & masks_[j * s_.masks() + k];
      });
      if (s_.merges[c]) clash |= got[c] & here;
      got[c] |= here;
    }
    for (int c = 0; c < s_.colors; ++c)
      diff |= route(x, c, go[c], m[inject_ + c], sends[c], takes[c], got[c], to_ce[c], &clash);
    count_down(x, m, ready);
    if (any(clash)) result->fault = true;
    return any(diff);
  }

  // Moves one color; returns bits of whatever changed.
  V route(V* x, int c, V go, V inject, V sends, V takes, V got, V to_ce, V* clash) {
    V *one = x + router_ + 2 * c, *two = one + 1, *up = x + up_ + c * s_.ramp;
    V *down = x + down_ + c * (s_.ramp - 1), *queue = x + queue_[c];
    const int depth = s_.depths[c], ramp = s_.ramp;
    V room[kMaxRamp + 1];
    rooms(up, ramp, ~*two & inject, room);
    const V injected = up[ramp - 1] & room[ramp];
    if (s_.merges[c]) *clash |= got & injected;
    got |= injected;
    V diff = injected | go | got | takes | sends;
    for (int k = ramp - 1; k >= 0; --k) {
      const V into = k ? up[k - 1] & room[k] : sends;
      diff |= up[k] & room[k + 1];
      up[k] = (up[k] & ~room[k + 1]) | into;
    }
    const V kept = *one & ~go;
    *one = got | *two | kept;
    *two = (kept & got) | (*two & ~go);
    V push = to_ce;
    if (ramp > 1) {
      rooms(down, ramp - 1, ~queue[depth - 1], room);
      push = down[ramp - 2] & room[ramp - 1];
      for (int k = ramp - 2; k >= 0; --k) {
        const V into = k ? down[k - 1] & room[k] : to_ce;
        diff |= down[k] & room[k + 1];
        down[k] = (down[k] & ~room[k + 1]) | into;
      }
    }
    const V grow = push & ~takes, shrink = takes & ~push, same = ~(push ^ takes);
    V below = kOnes;
    for (int k = 0; k < depth; ++k) {
      const V level = queue[k], above = k + 1 < depth ? queue[k + 1] : kZero;
      queue[k] = (level & same) | (below & grow) | (above & shrink);
      below = level;
    }
    return diff;
  }

  void count_down(V* x, const V* m, V borrow) {
    for (int k = 0; k < s_.bits; ++k) {
      const V bit = x[count_ + k];
      x[count_ + k] = bit ^ borrow;
      borrow &= ~bit;
    }
    if (!any(borrow)) return;  // no operation ends here
    const V ends = borrow;
    V enters[kMaxSlots];
    for (int slot = 1; slot < s_.slots; ++slot)
      enters[slot] = x[at_ + slot - 1] & ends & m[exists_ + slot];
    x[at_] &= ~ends;
    for (int slot = 1; slot < s_.slots; ++slot)
      x[at_ + slot] = (x[at_ + slot] & ~ends) | enters[slot];
    for (int k = 0; k < s_.bits; ++k) {
      V bit = x[count_ + k] & ~ends;
      for (int slot = 1; slot < s_.slots; ++slot)
        bit |= enters[slot] & m[counts_ + slot * s_.bits + k];
      x[count_ + k] = bit;
    }
  }

  const Shape& s_;
  int rows_, blocks_, planes_;
  int router_ = 0, up_ = 0, down_ = 0, at_ = 0, count_ = 0, queue_[kMaxColors] = {};
  int inject_ = 0, reads_ = 0, writes_ = 0, exists_ = 0, counts_ = 0;
  const V* masks_ = nullptr;
  Array<V> state_, go_;
  Array<uint8_t> changed_, visit_;
};

}  // namespace

Result WAFER_TARGET(const Shape& shape, const V* masks, int first, int last) {
  Grid grid(shape, masks, first, last);
  return shape.vertical ? grid.run() : grid.run_apart();
}

}  // namespace wafer
