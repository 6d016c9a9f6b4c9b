// Cells of the C++ engine, their exchange with the flat arrays, and the routers' half of a cycle.
//
// The rules are those of router.py; each cell is visited only if it or what it sees of a neighbour
// changed in the cycle before, since a step is a function of the state alone.
#pragma once
#include <algorithm>
#include <memory>

#include "machine.h"

namespace wafer {

// One color at one PE. R ramp stages at most (2: exactly), D queue words at most.
template <int R, int D>
struct alignas(R == 2 && D == 2 ? 64 : 4) Lane {
  uint32_t router[2], up[R], down[R - 1], queue[D], sent;
  int32_t counter;
  uint8_t router_flag[2], up_flag[R], down_flag[R - 1], queue_flag[D], sent_flag;
  uint8_t pos_rx, pos_tx, rx, tx;  // the ports are those of the positions
  uint8_t ports;                   // by which the head leaves in this cycle
  bool go;
};

struct Thread {
  int pc, left, wait;
};

struct alignas(64) Core {
  int active, blocked, end;
  uint32_t busy, links[kPorts], arg;  // counts wrap as the reference's do
  Thread threads[kThreads];  // that of the task first: most programs touch one cache line
};

// Side k = W, E, S, N is port bit 1 << k; what leaves by it arrives from side k ^ 1.
inline uint8_t port(int side) { return uint8_t(1 << side); }
inline int opposite(int side) { return side ^ 1; }

template <int R, int D>
class Grid {
 public:
  using L = Lane<R, D>;

  Grid(const Program& p, const State& s, int rows)
      : p_(p), s_(s), rows_(rows), width_(p.width), ramp_(R == 2 ? 2 : p.ramp),
        lanes_(new L[size_t(rows_) * width_ * std::max(1, p.colors)]()),
        cores_(new Core[size_t(rows_) * width_]()),
        stride_(p.words + 16 + p.words % 16),  // PEs' words lie in different sets of the caches
        mem_(new uint32_t[size_t(cells()) * stride_]), visit_(new uint8_t[cells()]),
        next_(new uint8_t[cells()]), sides_(new uint8_t[cells()]),
        offset_{-1, 1, width_, -width_} {
    for (int cell = 0; cell < cells(); ++cell) {
      const int x = cell % width_, y = cell / width_;
      sides_[cell] = (x > 0) | (x + 1 < width_) << 1 | (y + 1 < rows_) << 2 | (y > 0) << 3;
    }
  }

  int rows() const { return rows_; }
  int cells() const { return rows_ * width_; }
  int pe(int cell) const { return first_ * width_ + cell; }

  // Takes in the rows from `first` on.
  void load(int first) {
    first_ = first;
    std::fill_n(visit_.get(), cells(), 1), std::fill_n(next_.get(), cells(), 0);
    std::fill_n(lanes_.get(), size_t(cells()) * p_.colors, L());
    const auto move = [](auto& own, auto& flat) { own = flat; };
    exchange(move), exchange_memory(s_.before, move);
    for (int cell = 0; cell < cells(); ++cell)
      for (int c = 0; c < p_.colors; ++c) aim(cell, c, at(cell, c));
  }

  void store() {
    const auto move = [](auto& own, auto& flat) { flat = own; };
    exchange(move), exchange_memory(s_.mem, move);
  }

  // What leaves each router of rows [from, to).
  void leave(int from, int to) {
    for (int cell = from * width_; cell < to * width_; ++cell) {
      if (load8(visit_[cell]) != 1) continue;
      uint8_t used = 0;
      for (int c = 0; c < p_.colors; ++c) {
        L& lane = at(cell, c);
        lane.go = false, lane.ports = 0;
        if (lane.router_flag[0]) depart(cell, c, lane, &used);
      }
      each(used & 15, [&](int side) {
        uint8_t& other = visit_[cell + offset_[side]];
        if (!load8(other)) store8(other, 2);
      });
    }
  }

 protected:
  L& at(int cell, int c) { return lanes_[size_t(cell) * p_.colors + c]; }
  static uint8_t load8(uint8_t& v) { return __atomic_load_n(&v, __ATOMIC_RELAXED); }
  static void store8(uint8_t& v, uint8_t to) { __atomic_store_n(&v, to, __ATOMIC_RELAXED); }

  // Calls visit(side) for every side in a mask of ports.
  template <class Visit>
  static void each(int mask, Visit visit) {
    for (; mask; mask &= mask - 1) visit(__builtin_ctz(mask));
  }

  // The color as which what leaves a PE by a side arrives.
  int swapped(int cell, int c, int side) const {
    if (!p_.swaps) return c;
    return p_.swap[(int64_t(side >= 2) * p_.colors + c) * p_.pes() + pe(cell)] ? p_.partner[c] : c;
  }

  bool passes_filter(int cell, int c, const L& lane) const {
    const bool control = lane.router_flag[0] & kControl;
    if (control && (lane.router[0] >> 24 & 1)) return false;
    if (!p_.filtered || control) return true;
    const int64_t i = int64_t(c) * p_.pes() + pe(cell), plane = int64_t(p_.colors) * p_.pes();
    const int kind = p_.filters[i], a = p_.filters[i + plane], b = p_.filters[i + 2 * plane];
    const int index = int(lane.router[0] >> 16);
    return kind == kCounter ? lane.counter <= a : kind == kRange ? index >= a && index <= b : true;
  }

  void count(int cell, int c, L& lane) const {
    const int64_t i = int64_t(c) * p_.pes() + pe(cell), plane = int64_t(p_.colors) * p_.pes();
    if (p_.filters[i] == kCounter)
      lane.counter = lane.counter >= p_.filters[i + 2 * plane] ? 0 : lane.counter + 1;
  }

  static uint32_t next_hop(uint32_t data) {
    uint32_t field = (data >> 22 & 0xFF) | (data & 0xFFFF) << 8;
    field = field >> 3 | (field & 7) << 21;
    return (data & 0xC03F0000) | (field & 0xFF) << 22 | field >> 8;
  }

  bool queue_room(int c, const L& lane) const { return !lane.queue_flag[p_.limit[c] - 1]; }

  bool down_room(int c, const L& lane) const {
    for (int k = 0; k < ramp_ - 1; ++k)
      if (!lane.down_flag[k]) return true;
    return queue_room(c, lane);
  }

  void depart(int cell, int c, L& lane, uint8_t* used) {
    const uint8_t need =
        lane.tx & kRampPort && !passes_filter(cell, c, lane) ? lane.tx & ~kRampPort : lane.tx;
    if (need & *used || (need & kRampPort && !down_room(c, lane))) return;
    if (need & 15 & ~sides_[cell]) return;
    bool free = true;
    each(need & 15, [&](int side) {
      const L& there = at(cell + offset_[side], swapped(cell, c, side));
      free &= !there.router_flag[1] && there.rx & port(opposite(side));
    });
    if (!free) return;
    const uint8_t flag = lane.router_flag[0];
    lane.go = true, lane.ports = need, *used |= need;
    lane.sent_flag = flag & ~kAdvance;
    lane.sent = p_.per_hop && flag & kControl ? next_hop(lane.router[0]) : lane.router[0];
    if (p_.filtered && lane.tx & kRampPort && !(flag & kControl)) count(cell, c, lane);
    each(need, [&](int k) { ++cores_[cell].links[k]; });
  }

  uint8_t ports_at(const uint8_t* table, int cell, int c, int position) const {
    if (position == kTorn) return 0;
    const int k = p_.switched ? position : 0;
    return table[(int64_t(k) * p_.colors + c) * p_.pes() + pe(cell)];
  }

  void aim(int cell, int c, L& lane) const {
    lane.rx = ports_at(p_.rx, cell, c, lane.pos_rx);
    lane.tx = ports_at(p_.tx, cell, c, lane.pos_tx);
  }

  // The switch position after a wavelet has passed.
  uint8_t advance(int cell, int c, int position, uint32_t data, uint8_t flag) const {
    int command = flag & kControl ? data >> 22 & 3 : 0;
    if (flag & kAdvance) command = kSwitchAdv;
    const int64_t i = int64_t(c) * p_.pes() + pe(cell);
    const int last = std::max<int>(p_.defined[i], 1) - 1;
    if (command == kTeardown && p_.teardown) return kTorn;
    if (position > last && p_.teardown) return uint8_t(position);
    if (command == kSwitchRst) return 0;
    if (command != kSwitchAdv) return uint8_t(position);
    return uint8_t(position >= last ? (p_.ring[i] ? 0 : last) : position + 1);
  }

  void changed(int cell, bool seen_by_others) {
    store8(next_[cell], 1);
    if (!seen_by_others) return;
    each(sides_[cell], [&](int side) { store8(next_[cell + offset_[side]], 1); });
  }

  const Program& p_;
  const State& s_;
  const int rows_, width_, ramp_;
  int first_ = 0;
  std::unique_ptr<L[]> lanes_;
  std::unique_ptr<Core[]> cores_;
  const size_t stride_;
  std::unique_ptr<uint32_t[]> mem_;
  std::unique_ptr<uint8_t[]> visit_, next_, sides_;  // sides_: ports with a neighbour
  const int offset_[4];

 private:
  // [M, PEs] there, [PEs, M] here; in tiles that stay in the cache, long where a word of all PEs is
  // a page away from the next.
  template <class Words, class Move>
  void exchange_memory(Words* words, Move move) {
    constexpr int kWords = 8, kCells = 256;
    for (int cell = 0; cell < cells(); cell += kCells)
      for (int word = 0; word < p_.words; word += kWords)
        for (int w = word; w < std::min(word + kWords, p_.words); ++w)
          for (int i = cell; i < std::min(cell + kCells, cells()); ++i)
            move(mem_[i * stride_ + w], words[int64_t(w) * p_.pes() + pe(i)]);
  }

  template <class Move>
  void exchange(Move move) {
    const int64_t pes = p_.pes();
    const int stages[4] = {2, ramp_, ramp_ - 1, p_.depth};
    for (int c = 0; c < p_.colors; ++c) {
      for (int cell = 0; cell < cells(); ++cell) {
        L& lane = at(cell, c);
        uint32_t* data[4] = {lane.router, lane.up, lane.down, lane.queue};
        uint8_t* flag[4] = {lane.router_flag, lane.up_flag, lane.down_flag, lane.queue_flag};
        for (int which = 0; which < 4; ++which)
          for (int k = 0; k < std::min(stages[which], which == 3 ? D : stages[which]); ++k) {
            const int64_t i = (int64_t(c) * stages[which] + k) * pes + pe(cell);
            move(data[which][k], s_.data[which][i]), move(flag[which][k], s_.flag[which][i]);
          }
        const int64_t i = c * pes + pe(cell);
        move(lane.pos_rx, s_.pos_rx[i]), move(lane.pos_tx, s_.pos_tx[i]);
        move(lane.counter, s_.counter[i]);
      }
    }
    for (int cell = 0; cell < cells(); ++cell) {
      Core& core = cores_[cell];
      const int64_t i = pe(cell);
      for (int t = 0; t < p_.threads; ++t) {
        move(core.threads[t].pc, s_.pc[t * pes + i]), move(core.threads[t].left, s_.left[t * pes + i]);
        move(core.threads[t].wait, s_.wait[t * pes + i]);
      }
      move(core.active, s_.active[i]), move(core.blocked, s_.blocked[i]);
      move(core.arg, s_.arg[i]), move(core.busy, s_.busy[i]), move(core.end, s_.end[i]);
      for (int k = 0; k < kPorts; ++k) move(core.links[k], s_.links[k * pes + i]);
    }
  }
};

}  // namespace wafer
