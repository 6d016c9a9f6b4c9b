// The routers' half of a cycle: what leaves, what arrives, which switches advance.
//
// The rules are those of wafer/fabric/engines/router.py; registers can be rewritten at run time, so
// each lane holds its own. A cell is visited only if it or what it sees changed in the cycle before.
#pragma once
#include <algorithm>
#include <deque>
#include <memory>

#include "arena.h"
#include "recorder.h"
#include "state.h"

namespace wafer::csl {

// Where words enter and leave a colour's router by a side that leads out of the rectangle.
struct Port {
  int cell, slot, side;
  bool takes = false;  // what leaves is kept
  std::deque<std::pair<uint32_t, uint8_t>> in;  // words with their flags
  std::pair<uint32_t, uint8_t> entering;        // in this cycle
  std::vector<uint32_t> out;
};

class Routers {
 public:
  // edges: the sides, W E S N from bit 0 on, on which the wafer ends with these rows and columns.
  Routers(int rows, int width, int edges, std::vector<int> colors, std::vector<FilterRow> filters)
      : rows_(rows), width_(width), edges_(uint8_t(edges)), colors_(std::move(colors)), filters_(std::move(filters)),
        slots_(int(colors_.size())), lanes_(size_t(rows) * width * slots_),
        live_(cells()),
        incoming_(cells()), visit_(cells(), 1), next_(cells()), sides_(cells()),
        links_(size_t(cells()) * kPorts), offset_{-1, 1, width, -width},
        reach_{-slots_, slots_, width * slots_, -width * slots_} {
    std::fill_n(slot_, kColors, -1);
    for (int slot = 0; slot < slots_; ++slot) slot_[colors_[slot]] = int8_t(slot);
    for (int slot = 0; slot < slots_; ++slot) partner_.push_back(slot_[colors_[slot] ^ 1]);
    for (int cell = 0; cell < cells(); ++cell) {
      const int x = cell % width_, y = cell / width_;
      sides_[cell] = uint8_t((x > 0) | (x + 1 < width_) << 1 | (y + 1 < rows_) << 2 | (y > 0) << 3);
    }
  }

  int cells() const { return rows_ * width_; }
  Lane& at(int cell, int slot) { return lanes_[size_t(cell) * slots_ + slot]; }
  const Lane& at(int cell, int slot) const { return lanes_[size_t(cell) * slots_ + slot]; }

  // The port of a colour at a side; a new one if there is none.
  Port& port(int cell, int slot, int side) {
    if (Port* there = find_port(cell, slot, side)) return *there;
    ports_.push_back(std::make_unique<Port>(Port{cell, slot, side, false, {}, {}, {}}));
    return *ports_.back();
  }
  Port* find_port(int cell, int slot, int side) const {
    for (const auto& port : ports_)
      if (port->cell == cell && port->slot == slot && port->side == side) return port.get();
    return nullptr;
  }

  // 1. Depart: what leaves each router of rows [from, to), and what enters from outside.
  void leave(int from, int to, Worker* worker) {
    for (const auto& port : ports_)
      if (!port->in.empty() && port->cell / width_ >= from && port->cell / width_ < to) enter(*port);
    for (int cell = from * width_; cell < to * width_; ++cell) {
      if (load(visit_[cell]) != 1) continue;
      uint8_t used = 0;
      each(live_[cell], [&](int slot) {
        Lane& lane = at(cell, slot);
        if (lane.router_flag[0]) depart(cell, slot, lane, &used, worker);
      });
    }
  }

 protected:
  template <class Value>
  static Value load(Value& v) { return __atomic_load_n(&v, __ATOMIC_RELAXED); }
  template <class Value>
  static void store(Value& v, Value to) { __atomic_store_n(&v, to, __ATOMIC_RELAXED); }

  static constexpr int kRamp = 4;     // behind the four sides
  static constexpr int kPartner = 4;  // behind the four sides in Lane::from

  // Calls visit(k) for every bit k of a mask.
  template <class Visit>
  static void each(uint32_t mask, Visit visit) {
    for (; mask; mask &= mask - 1) visit(__builtin_ctz(mask));
  }

  // The slot as which a router, whose lane of the slot this is, takes what comes in by a side.
  int swapped(const Lane& lane, int slot, int side) const {
    const int swaps = side < 2 ? kSwapX : side < 4 ? kSwapY : kSwapX | kSwapY;
    return (lane.color & swaps) == swaps ? partner_[slot] : slot;
  }

  // The slot as which what leaves a lane by a side arrives.
  int arriving(const Lane& lane, int slot, int side) const {
    return swapped((&lane)[reach_[side]], slot, opposite(side));
  }

  // The ports of a lane at a switch position: each position changes one side, and later ones add.
  static uint8_t ports_at(const Lane& lane, int position, bool input) {
    uint8_t ports = (input ? lane.color >> 5 : lane.color) & 31;
    for (int k = 1; k <= position; ++k) {
      const int code = lane.switches >> 4 * (k - 1) & 15;
      if ((code & 7) < kPorts && bool(code & 8) == input) ports = uint8_t(1 << (code & 7));
    }
    return ports;
  }

  static void aim(Lane& lane) {
    lane.rx = lane.torn_rx ? 0 : ports_at(lane, lane.pos_rx, true);
    lane.tx = lane.torn_tx ? 0 : ports_at(lane, lane.pos_tx, false);
  }

  static uint8_t following(const Lane& lane, uint8_t position) {
    if (position < 3 && (lane.switches >> 4 * position & 7) < kPorts) return position + 1;
    return lane.switches & 1 << 12 ? 0 : position;
  }

  enum Command { kNop, kSwitchAdv, kSwitchRst, kTeardown };
  static Command command(uint32_t word, uint8_t flag) {
    if (flag & kAdvance) return kSwitchAdv;
    return flag & kControl ? Command(word >> 22 & 3) : kNop;
  }
  static uint8_t obeyed(const Lane& lane, uint8_t position, Command command) {
    return command == kSwitchAdv ? following(lane, position) : command == kSwitchRst ? 0 : position;
  }

  // Without its first command; behind the last one come NOPs that the CE sees if it sees that one.
  static uint32_t without_first(uint32_t word) {
    uint32_t field = (word >> 22 & 0xFF) | (word & 0xFFFF) << 8;
    field = field >> 3 | (field & 1 << 23);
    return (word & 0xC03F0000) | (field & 0xFF) << 22 | field >> 8;
  }

  static uint32_t forwarded(const Lane& lane, uint32_t word, uint8_t flag) {
    if (!(flag & kControl)) return word;
    const Command first = command(word, flag);
    const int mode = lane.color >> 12 & 3;
    const bool moves = obeyed(lane, lane.pos_tx, first) != lane.pos_tx;
    const bool pops = mode == kAlwaysPop || (mode >= kPopOnAdvance && moves) ||
                      (mode == kPopOnAdvanceNop && first == kNop);
    return pops ? without_first(word) : word;
  }

  // Whether the CE is to see the head.
  bool passes_filter(const Lane& lane) const {
    const bool control = lane.router_flag[0] & kControl;
    if (control && lane.router[0] >> 24 & 1) return false;
    const FilterState& state = lane.filter;
    if (!state.on) return true;
    const FilterRow& row = filters_[state.row];
    const int index = int(lane.router[0] >> 16);
    if (row.kind == 3) return control || (index >= row.low && index <= row.high);
    if (control && !row.controls_filtered) return true;
    return control ? state.counter == row.most : state.counter <= row.most;
  }

  void count(Lane& lane) const {
    FilterState& state = lane.filter;
    if (!state.on || filters_[state.row].kind == 3) return;
    const FilterRow& row = filters_[state.row];
    if (!(lane.router_flag[0] & kControl ? row.counts_control : row.counts_data)) return;
    if (state.counter < state.limit) return void(++state.counter);
    state.counter = 0;
    if (row.kind != 2) return;
    if (state.second || row.limit2 < 0) state.on = false;
    state.second = true, state.limit = row.limit2;
  }

  [[gnu::always_inline]] void depart(int cell, int slot, Lane& lane, uint8_t* used,
                                     Worker* worker) {
    uint8_t need = lane.tx;
    if (need & kRampPort && !passes_filter(lane)) need &= uint8_t(~kRampPort);
    if (need & *used) return;
    if (need & kRampPort && lane.down_flag && lane.size >= lane.depth) return;
    const uint8_t outer = need & 15 & ~sides_[cell];
    if (outer & edges_ && ports_.empty()) return worker->note({kOffWafer, cell, 0, 0, -1, colors_[slot]});
    bool free = true;
    const uint8_t inner = need & sides_[cell];  // PEs beyond take words and do nothing with them
    const auto leave_by_ports = [&] {
      each(outer, [&](int side) {
        Port* const port = find_port(cell, slot, side);
        if (port && port->takes && !(lane.sent_flag & kControl)) port->out.push_back(lane.sent);
      });
    };
    each(inner, [&](int side) {
      const Lane& there = (&lane)[reach_[side] + arriving(lane, slot, side) - slot];
      free &= !there.router_flag[1] && there.rx >> opposite(side) & 1;
    });
    if (!free) return;
    const uint8_t flag = lane.router_flag[0];
    lane.go = true, lane.ports = need, *used |= need;
    lane.sent_flag = flag & uint8_t(~kAdvance);
    lane.sent = forwarded(lane, lane.router[0], flag);
    if (lane.tx & kRampPort && !(flag & kControl && lane.router[0] >> 24 & 1)) count(lane);
    if (outer && !ports_.empty()) leave_by_ports();
    each(need, [&](int port) { ++links_[size_t(cell) * kPorts + port]; });
    if (recorder_) recorder_->words(cell, need);
    each(inner, [&](int side) {
      const int other = cell + offset_[side], its = arriving(lane, slot, side);
      const uint32_t arrives = 1u << its;
      const uint8_t from = uint8_t(1 << (opposite(side) + (its == slot ? 0 : kPartner)));
      uint8_t& sides = (&lane)[reach_[side] + its - slot].from;
      if (other >= worker->own_from && other < worker->own_to) {
        incoming_[other] |= arrives, sides |= from;
      } else {
        __atomic_fetch_or(&incoming_[other], arrives, __ATOMIC_RELAXED);
        __atomic_fetch_or(&sides, from, __ATOMIC_RELAXED);
      }
      if (!load(visit_[other])) store(visit_[other], uint8_t(2));
    });
  }

  // A word from outside, if the router takes one in this cycle.
  void enter(Port& port) {
    Lane& lane = at(port.cell, port.slot);
    if (lane.router_flag[1] || !(lane.rx >> port.side & 1)) return;
    port.entering = port.in.front(), port.in.pop_front();
    __atomic_fetch_or(&incoming_[port.cell], 1u << port.slot, __ATOMIC_RELAXED);
    __atomic_fetch_or(&lane.from, uint8_t(1 << port.side), __ATOMIC_RELAXED);
    if (!load(visit_[port.cell])) store(visit_[port.cell], uint8_t(2));
  }

  // Whether the ramp to the router has room in this cycle.
  static bool room_up(const Lane& lane) {
    return !lane.up_flag[0] || !lane.up_flag[1] || enters(lane);
  }
  static bool enters(const Lane& lane) { return !lane.router_flag[1] && lane.rx & kRampPort; }

  static void push_word(Core& core, int slot, uint32_t word, bool control) {
    Lane& lane = core.lanes[slot];
    const unsigned place = unsigned(lane.head + lane.size++) % kQueues;
    lane.words[place] = word;
    lane.controls = uint8_t((lane.controls & ~(1u << place)) | unsigned(control) << place);
    core.queued |= 1u << slot;
  }
  static void pop_word(Core& core, int slot) {
    Lane& lane = core.lanes[slot];
    lane.head = (lane.head + 1u) % kQueues;
    if (!--lane.size) core.queued &= ~(1u << slot);
  }

  // Of a colour in a cycle: it moved, its neighbours see a change, it holds words.
  enum Change { kMoved = 1, kSeen = 2, kBusy = 4 };
  // Moves one colour, onto whose ramp a word may come.
  [[gnu::always_inline]] int route(Core& core, int slot, Sent sent, Worker* worker) {
    const uint8_t flag = sent.slot() == slot ? sent.flag() : 0;
    Lane& lane = core.lanes[slot];
    const bool queue_room = lane.size + lane.popped < lane.depth, to_router = enters(lane);
    lane.popped = 0;
    const uint32_t head = lane.router[0];
    const uint8_t head_flag = lane.router_flag[0];
    // In locals: a wide load of bytes that were just stored one by one stalls the core.
    uint8_t first = head_flag, second = lane.router_flag[1], down = lane.down_flag;
    const bool full = second;
    uint8_t entered = lane.up_flag[0], rising = lane.up_flag[1];
    bool moved = lane.go || flag;
    const uint8_t rx = lane.rx;

    // 1. Arrivals: from the CE, then from the neighbours.
    uint32_t got = lane.up[1];
    uint8_t got_flag = to_router ? rising : 0;
    int arrivals = got_flag != 0;
    each(lane.from, [&](int k) {
      if (k < kPartner && !(sides_[core.cell] >> k & 1)) {
        const Port& outside = *find_port(core.cell, slot, k);
        got = outside.entering.first, got_flag |= outside.entering.second, ++arrivals;
        return;
      }
      const int its = k < kPartner ? slot : partner_[slot];
      const Lane& there = (&lane)[reach_[k % kPartner] + its - slot];
      got = there.sent, got_flag |= there.sent_flag, ++arrivals;
    });
    lane.from = 0;
    if (arrivals > 1) worker->note({kSameCycleArrival, core.cell, 0, 0, -1, colors_[slot]});
    if (lane.go) {
      lane.router[0] = lane.router[1], first = second, second = 0;
    }
    if (got_flag) {
      lane.router[first != 0] = got, (first ? second : first) = got_flag, moved = true;
    }

    // 2. Down to the CE's queue.
    if (down && queue_room) {
      push_word(core, slot, lane.down, down & kControl);
      down = 0, moved = true;
    }
    if (lane.go && lane.ports & kRampPort) lane.down = head, down = head_flag;

    // 3. Up from the CE.
    if (to_router && rising) rising = 0, moved = true;
    if (!rising && entered) lane.up[1] = lane.up[0], rising = entered, entered = 0, moved = true;
    if (flag) lane.up[0] = sent.word(), entered = flag;
    lane.router_flag[0] = first, lane.router_flag[1] = second, lane.down_flag = down;
    lane.up_flag[0] = entered, lane.up_flag[1] = rising;

    if (got_flag || lane.go) switches(slot, lane, got, got_flag, head, lane.go ? head_flag : 0, core);
    const bool busy = first | entered | rising | down;
    lane.go = false;
    return moved * kMoved | (bool(second) != full || rx != lane.rx) * kSeen | busy * kBusy;
  }

  // What has entered moves the entering side, what has left the leaving side.
  void switches(int slot, Lane& lane, uint32_t got, uint8_t got_flag, uint32_t head,
                uint8_t left_flag, Core& core) {
    const Command in = command(got, got_flag), out = command(head, left_flag);
    if (in == kNop && out == kNop) return;
    lane.pos_rx = obeyed(lane, lane.pos_rx, in), lane.pos_tx = obeyed(lane, lane.pos_tx, out);
    if (in == kTeardown) lane.torn_rx = true;
    if (out == kTeardown) lane.torn_tx = true, core.torn |= 1u << colors_[slot];
    aim(lane);
  }

  void changed(int cell, bool seen_by_others) {
    store(next_[cell], uint8_t(1));
    if (!seen_by_others) return;
    each(sides_[cell], [&](int side) { store(next_[cell + offset_[side]], uint8_t(1)); });
  }

  const int rows_, width_;
  const uint8_t edges_;
  const std::vector<int> colors_;  // in use, ascending
  const std::vector<FilterRow> filters_;
  const int slots_;
  int8_t slot_[kColors];  // of each colour, or -1
  uint32_t to_host_ = 0;  // slots
  std::vector<int8_t> partner_;
  Arena<Lane> lanes_;
  std::vector<uint32_t> live_, incoming_;     // slots with words; to which words come
  std::vector<uint8_t> visit_, next_, sides_;     // sides_: ports with a neighbour
  std::vector<uint32_t> links_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::unique_ptr<Recorder> recorder_;  // none: nothing is recorded
  const int offset_[4], reach_[4];  // to the neighbour by a side: of cells, of their lanes
};

}  // namespace wafer::csl
