// Routers: what leaves, what arrives, which switches advance.
//
// The rules are those of wafer/fabric/engines/router.py; registers can be rewritten at run time, so
// each lane holds its own. A cell is visited only if it, or what it sees, changed in the last cycle.
#pragma once
#include <algorithm>

#include "state.h"

namespace wafer::csl {
namespace {

template <class Value>
Value load_relaxed(Value& v) { return __atomic_load_n(&v, __ATOMIC_RELAXED); }

template <class Value>
void store_relaxed(Value& v, Value to) { __atomic_store_n(&v, to, __ATOMIC_RELAXED); }

// Calls visit(k) for every bit k of a mask.
template <class Visit>
[[gnu::always_inline]] inline void each(uint32_t mask, Visit visit) {
  for (; mask; mask &= mask - 1) visit(__builtin_ctz(mask));
}

constexpr int kRamp = 4;     // behind the four sides
constexpr int kPartner = 4;  // behind the four sides in Lane::from

inline Port* find_port(const Wafer& w, int cell, int slot, int side) {
  for (const auto& port : w.ports)
    if (port->cell == cell && port->slot == slot && port->side == side) return port.get();
  return nullptr;
}

// The port of a colour at a side; a new one if there is none.
inline Port& port(Wafer& w, int cell, int slot, int side) {
  if (Port* there = find_port(w, cell, slot, side)) return *there;
  w.ports.push_back(std::make_unique<Port>(Port{cell, slot, side, false, {}, {}, {}}));
  return *w.ports.back();
}

// The slot as which a router, whose lane of the slot this is, takes what comes in by a side.
inline int swapped(const Wafer& w, const Lane& lane, int slot, int side) {
  const int swaps = side < 2 ? kSwapX : side < 4 ? kSwapY : kSwapX | kSwapY;
  return (lane.color & swaps) == swaps ? w.partner[slot] : slot;
}

// The slot as which what leaves a lane by a side arrives.
inline int arriving(const Wafer& w, const Lane& lane, int slot, int side) {
  return swapped(w, (&lane)[w.reach[side]], slot, opposite(side));
}

// The ports of a lane at a switch position: each position changes one side, and later ones add.
inline uint8_t ports_at(const Lane& lane, int position, bool input) {
  uint8_t ports = (input ? lane.color >> 5 : lane.color) & 31;
  for (int k = 1; k <= position; ++k) {
    const int code = lane.switches >> 4 * (k - 1) & 15;
    if ((code & 7) < kPorts && bool(code & 8) == input) ports = uint8_t(1 << (code & 7));
  }
  return ports;
}

inline void aim(Lane& lane) {
  lane.rx = lane.torn_rx ? 0 : ports_at(lane, lane.pos_rx, true);
  lane.tx = lane.torn_tx ? 0 : ports_at(lane, lane.pos_tx, false);
}

inline uint8_t following(const Lane& lane, uint8_t position) {
  if (position < 3 && (lane.switches >> 4 * position & 7) < kPorts) return position + 1;
  return lane.switches & 1 << 12 ? 0 : position;
}

enum Command { kNop, kSwitchAdv, kSwitchRst, kTeardown };

inline Command command(uint32_t word, uint8_t flag) {
  if (flag & kAdvance) return kSwitchAdv;
  return flag & kControl ? Command(word >> 22 & 3) : kNop;
}

inline uint8_t obeyed(const Lane& lane, uint8_t position, Command command) {
  return command == kSwitchAdv ? following(lane, position) : command == kSwitchRst ? 0 : position;
}

// Without its first command; behind the last one come NOPs that the CE sees if it sees that one.
inline uint32_t without_first(uint32_t word) {
  uint32_t field = (word >> 22 & 0xFF) | (word & 0xFFFF) << 8;
  field = field >> 3 | (field & 1 << 23);
  return (word & 0xC03F0000) | (field & 0xFF) << 22 | field >> 8;
}

inline uint32_t forwarded(const Lane& lane, uint32_t word, uint8_t flag) {
  if (!(flag & kControl)) return word;
  const Command first = command(word, flag);
  const int mode = lane.color >> 12 & 3;
  const bool moves = obeyed(lane, lane.pos_tx, first) != lane.pos_tx;
  const bool pops = mode == kAlwaysPop || (mode >= kPopOnAdvance && moves) ||
                    (mode == kPopOnAdvanceNop && first == kNop);
  return pops ? without_first(word) : word;
}

// Whether the CE is to see the head.
inline bool passes_filter(const Wafer& w, const Lane& lane) {
  const bool control = lane.router_flag[0] & kControl;
  if (control && lane.router[0] >> 24 & 1) return false;
  const FilterState& state = lane.filter;
  if (!state.on) return true;
  const FilterRow& row = w.filters[state.row];
  const int index = int(lane.router[0] >> 16);
  if (row.kind == 3) return control || (index >= row.low && index <= row.high);
  if (control && !row.controls_filtered) return true;
  return control ? state.counter == row.most : state.counter <= row.most;
}

inline void count_filtered(const Wafer& w, Lane& lane) {
  FilterState& state = lane.filter;
  if (!state.on || w.filters[state.row].kind == 3) return;
  const FilterRow& row = w.filters[state.row];
  if (!(lane.router_flag[0] & kControl ? row.counts_control : row.counts_data)) return;
  if (state.counter < state.limit) return void(++state.counter);
  state.counter = 0;
  if (row.kind != 2) return;
  if (state.second || row.limit2 < 0) state.on = false;
  state.second = true, state.limit = row.limit2;
}

[[gnu::always_inline]] inline void depart_lane(Wafer& w, int cell, int slot, Lane& lane,
                                               uint8_t* used,
                                   Worker* worker) {
  uint8_t need = lane.tx;
  if (need & kRampPort && !passes_filter(w, lane)) need &= uint8_t(~kRampPort);
  if (need & *used) return;
  if (need & kRampPort && lane.down_flag && lane.size >= lane.depth) return;
  const uint8_t outer = need & 15 & ~w.sides[cell];
  if (outer & w.edges && w.ports.empty())
    return worker->note({kOffWafer, cell, 0, 0, -1, w.colors[slot]});
  bool free = true;
  const uint8_t inner = need & w.sides[cell];  // PEs beyond take words and do nothing with them
  const auto leave_by_ports = [&] {
    each(outer, [&](int side) {
      Port* const port = find_port(w, cell, slot, side);
      if (port && port->takes && !(lane.sent_flag & kControl)) port->out.push_back(lane.sent);
    });
  };
  each(inner, [&](int side) {
    const Lane& there = (&lane)[w.reach[side] + arriving(w, lane, slot, side) - slot];
    free &= !there.router_flag[1] && there.rx >> opposite(side) & 1;
  });
  if (!free) return;
  const uint8_t flag = lane.router_flag[0];
  lane.go = true, lane.ports = need, *used |= need;
  lane.sent_flag = flag & uint8_t(~kAdvance);
  lane.sent = forwarded(lane, lane.router[0], flag);
  if (lane.tx & kRampPort && !(flag & kControl && lane.router[0] >> 24 & 1))
    count_filtered(w, lane);
  if (outer && !w.ports.empty()) leave_by_ports();
  each(need, [&](int port) { ++w.links[size_t(cell) * kPorts + port]; });
  if (w.recorder) w.recorder->words(cell, need);
  each(inner, [&](int side) {
    const int other = cell + w.offset[side], its = arriving(w, lane, slot, side);
    const uint32_t arrives = 1u << its;
    const uint8_t from = uint8_t(1 << (opposite(side) + (its == slot ? 0 : kPartner)));
    uint8_t& sides = (&lane)[w.reach[side] + its - slot].from;
    if (other >= worker->own_from && other < worker->own_to) {
      w.incoming[other] |= arrives, sides |= from;
    } else {
      __atomic_fetch_or(&w.incoming[other], arrives, __ATOMIC_RELAXED);
      __atomic_fetch_or(&sides, from, __ATOMIC_RELAXED);
    }
    if (!load_relaxed(w.visit[other])) store_relaxed(w.visit[other], uint8_t(2));
  });
}

// A word from outside, if the router takes one in this cycle.
inline void enter_by_port(Wafer& w, Port& port) {
  Lane& lane = w.at(port.cell, port.slot);
  if (lane.router_flag[1] || !(lane.rx >> port.side & 1)) return;
  port.entering = port.in.front(), port.in.pop_front();
  __atomic_fetch_or(&w.incoming[port.cell], 1u << port.slot, __ATOMIC_RELAXED);
  __atomic_fetch_or(&lane.from, uint8_t(1 << port.side), __ATOMIC_RELAXED);
  if (!load_relaxed(w.visit[port.cell])) store_relaxed(w.visit[port.cell], uint8_t(2));
}

// 1. Depart: what leaves each router of rows [from, to), and what enters from outside.
inline void depart(Wafer& w, int from, int to, Worker* worker) {
  for (const auto& port : w.ports) {
    const int row = port->cell / w.width;
    if (!port->in.empty() && row >= from && row < to) enter_by_port(w, *port);
  }
  for (int cell = from * w.width; cell < to * w.width; ++cell) {
    if (load_relaxed(w.visit[cell]) != 1) continue;
    uint8_t used = 0;
    each(w.live[cell], [&](int slot) {
      Lane& lane = w.at(cell, slot);
      if (lane.router_flag[0]) depart_lane(w, cell, slot, lane, &used, worker);
    });
  }
}

inline bool enters(const Lane& lane) { return !lane.router_flag[1] && lane.rx & kRampPort; }

// Whether the ramp to the router has room in this cycle.
inline bool room_up(const Lane& lane) {
  return !lane.up_flag[0] || !lane.up_flag[1] || enters(lane);
}

inline void push_word(Core& core, int slot, uint32_t word, bool control) {
  Lane& lane = core.lanes[slot];
  const unsigned place = unsigned(lane.head + lane.size++) % kQueues;
  lane.words[place] = word;
  lane.controls = uint8_t((lane.controls & ~(1u << place)) | unsigned(control) << place);
  core.queued |= 1u << slot;
}

inline void pop_word(Core& core, int slot) {
  Lane& lane = core.lanes[slot];
  lane.head = (lane.head + 1u) % kQueues;
  if (!--lane.size) core.queued &= ~(1u << slot);
}

// Of a colour in a cycle: it moved, its neighbours see a change, it holds words.
enum Change { kMoved = 1, kSeen = 2, kBusy = 4 };

// What has entered moves the entering side, what has left the leaving side.
inline void switches(const Wafer& w, int slot, Lane& lane, uint32_t got, uint8_t got_flag,
                     uint32_t head,
              uint8_t left_flag, Core& core) {
  const Command in = command(got, got_flag), out = command(head, left_flag);
  if (in == kNop && out == kNop) return;
  lane.pos_rx = obeyed(lane, lane.pos_rx, in), lane.pos_tx = obeyed(lane, lane.pos_tx, out);
  if (in == kTeardown) lane.torn_rx = true;
  if (out == kTeardown) lane.torn_tx = true, core.torn |= 1u << w.colors[slot];
  aim(lane);
}

// Moves one colour, onto whose ramp a word may come.
[[gnu::always_inline]] inline int move_lane(Wafer& w, Core& core, int slot, Sent sent,
                                            Worker* worker) {
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
    if (k < kPartner && !(w.sides[core.cell] >> k & 1)) {
      const Port& outside = *find_port(w, core.cell, slot, k);
      got = outside.entering.first, got_flag |= outside.entering.second, ++arrivals;
      return;
    }
    const int its = k < kPartner ? slot : w.partner[slot];
    const Lane& there = (&lane)[w.reach[k % kPartner] + its - slot];
    got = there.sent, got_flag |= there.sent_flag, ++arrivals;
  });
  lane.from = 0;
  if (arrivals > 1) worker->note({kSameCycleArrival, core.cell, 0, 0, -1, w.colors[slot]});
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

  if (got_flag || lane.go)
    switches(w, slot, lane, got, got_flag, head, lane.go ? head_flag : 0, core);
  const bool busy = first | entered | rising | down;
  lane.go = false;
  return moved * kMoved | (bool(second) != full || rx != lane.rx) * kSeen | busy * kBusy;
}

// 5. Move: what arrives in a PE's router, by its ramp too, and what enters its queues.
[[gnu::always_inline]] inline int move(Wafer& w, Core& core, Sent sent, Worker* worker) {
  const int cell = core.cell;
  const uint32_t enters = sent && sent.slot() >= 0 ? 1u << sent.slot() : 0;
  int changes = 0;
  uint32_t live = 0;
  each(w.live[cell] | w.incoming[cell] | core.popped | enters, [&](int slot) {
    const int change = move_lane(w, core, slot, sent, worker);
    changes |= change, live |= uint32_t(change / kBusy) << slot;
  });
  w.live[cell] = live, w.incoming[cell] = core.popped = 0;
  return changes;
}

inline void changed(Wafer& w, int cell, bool seen_by_others) {
  store_relaxed(w.next[cell], uint8_t(1));
  if (!seen_by_others) return;
  each(w.sides[cell], [&](int side) { store_relaxed(w.next[cell + w.offset[side]], uint8_t(1)); });
}

}  // namespace
}  // namespace wafer::csl
