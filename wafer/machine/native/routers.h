// Routers: what leaves, what arrives, which switches advance.
//
// Registers can be rewritten at run time, so each lane holds its own. A cell is visited only if it, or
// what it sees, changed in the last cycle.
#pragma once
#include <algorithm>

#include "state.h"

namespace wafer::csl {
namespace {

// Calls visit(k) for every bit k of a mask.
template <class Visit>
[[gnu::always_inline]] inline void each(uint32_t mask, Visit visit) {
  for (; mask; mask &= mask - 1) visit(__builtin_ctz(mask));
}

constexpr int kRamp = 4;     // behind the four sides

// The slot as which a router, whose lane of the slot this is, takes what comes in by a side.
inline int swapped(const Wafer& w, const Lane& lane, int slot, int side) {
  const int swaps = side < 2 ? kSwapX : side < 4 ? kSwapY : kSwapX | kSwapY;
  return (lane.color & swaps) == swaps ? w.partner[slot] : slot;
}

inline bool is_steered(const Wafer& w, const Lane& lane) { return w.swaps && lane.color & kSteered; }

// The slot as which what leaves a lane by a side arrives; a message's has the color of the side.
inline int arriving(const Wafer& w, const Lane& lane, int slot, int side) {
  if (is_steered(w, lane)) return w.slot[kMessages + 1 + side];
  return !w.swaps ? slot : swapped(w, (&lane)[w.reach[side]], slot, opposite(side));
}

// Whether a slot is of a color of messages, and all of those are in use.
inline bool has_messages(const Wafer& w, int slot) {
  const int8_t* const first = w.slot + kMessages;
  return std::find(first, first + kPorts, slot) < first + kPorts &&
         std::find(first, first + kPorts, -1) == first + kPorts;
}

// Gives a message whose header is at the head the port by which it leaves, first along the row,
// unless another message has that port. The port is held in the color register.
inline void steer(Wafer& w, int cell, Lane& lane) {
  const int header = int(lane.router[0].word()), x = cell % w.width, y = cell / w.width;
  const int column = header & 0x7FF, row = header >> 11 & 0x7FF;
  const int port = column < x ? 1 : column > x ? 2 : row > y ? 4 : row < y ? 8 : kRampPort;
  for (int k = 0; k < kPorts; ++k)
    if (w.at(cell, w.slot[kMessages + k]).color & port) return;
  lane.tx = port, lane.color |= uint16_t(port);
}

// The ports of a lane at a switch position: each position changes one side, and later ones add. What
// leaves at positions that change both sides is in beside, as switch_position in codes.py has it.
inline int ports_at(const Lane& lane, int position, bool input, int beside) {
  int ports = (input ? lane.color >> 5 : lane.color) & 31;
  for (int k = 0; k < position; ++k) {
    const int code = lane.switches >> 4 * k & 15, leaving = beside >> 4 * k & 15;
    if ((code & 7) >= kPorts) continue;
    if (bool(code & 8) == input) ports = 1 << (code & 7);
    else if (code & 8 && leaving) ports = 1 << leaving >> 1 & 31;
  }
  return ports;
}

inline void aim(const Wafer& w, int cell, int slot, Lane& lane) {
  const int beside = w.beside.empty() ? 0 : w.beside[size_t(cell) * size_t(w.slots) + size_t(slot)];
  lane.rx = lane.torn_rx ? 0 : ports_at(lane, lane.pos_rx, true, beside);
  lane.tx = lane.torn_tx ? 0 : ports_at(lane, lane.pos_tx, false, beside);
  if (w.recorder) w.recorder->route(cell, slot, lane.rx, lane.tx, lane.pos_tx);
}

inline int following(const Lane& lane, int position) {
  if (position < 3 && (lane.switches >> 4 * position & 7) < kPorts) return position + 1;
  return lane.switches & 1 << 12 ? 0 : position;
}

enum Command { kNop, kSwitchAdv, kSwitchRst, kTeardown };

inline Command command(Wavelet wavelet) {
  if (wavelet.flag() & kAdvance) return kSwitchAdv;
  return wavelet.flag() & kControl ? Command(wavelet.word() >> 22 & 3) : kNop;
}

inline int obeyed(const Lane& lane, int position, Command command) {
  return command == kSwitchAdv ? following(lane, position) : command == kSwitchRst ? 0 : position;
}

// Without its first command; behind the last one come NOPs that the CE sees if it sees that one.
inline uint32_t without_first(uint32_t word) {
  uint32_t field = (word >> 22 & 0xFF) | (word & 0xFFFF) << 8;
  field = field >> 3 | (field & 1 << 23);
  return (word & 0xC03F0000) | (field & 0xFF) << 22 | field >> 8;
}

inline Wavelet forwarded(const Lane& lane, Wavelet head) {
  if (!(head.flag() & (kControl | kAdvance))) return head;
  const Wavelet plain = head.without(kAdvance);
  if (!(head.flag() & kControl)) return plain;
  const Command first = command(head);
  const int mode = lane.color >> 12 & 3;
  const bool moves = obeyed(lane, lane.pos_tx, first) != lane.pos_tx;
  const bool pops = mode == kAlwaysPop || (mode >= kPopOnAdvance && moves) ||
                    (mode == kPopOnAdvanceNop && first == kNop);
  return pops ? Wavelet(without_first(head.word()), plain.flag()) : plain;
}

inline bool hidden(Wavelet head) {  // from the CE
  return head.flag() & kControl && head.word() >> 24 & 1;
}

inline FilterState& filter_of(Wafer& w, int cell, int slot) {
  return w.filtering[size_t(cell) * size_t(w.slots) + size_t(slot)];
}

// Whether the CE is to see the head.
inline bool passes_filter(Wafer& w, int cell, int slot, const Lane& lane) {
  const Wavelet head = lane.router[0];
  if (hidden(head)) return false;
  if (!lane.filtered) return true;
  const bool control = head.flag() & kControl;
  const FilterState& state = filter_of(w, cell, slot);
  const FilterRow& row = w.filters[state.row];
  const int index = int(head.word() >> 16);
  if (row.kind == 3) return control || (index >= row.low && index <= row.high);
  if (control && !row.controls_filtered) return true;
  return control ? state.counter == state.most : state.counter <= state.most;
}

inline void count_filtered(Wafer& w, int cell, int slot, Lane& lane) {
  FilterState& state = filter_of(w, cell, slot);
  const FilterRow& row = w.filters[state.row];
  if (row.kind == 3) return;
  if (!(lane.router[0].flag() & kControl ? row.counts_control : row.counts_data)) return;
  if (state.counter < state.limit) return void(++state.counter);
  state.counter = 0;
  if (row.kind != 2) return;
  if (state.second || row.limit2 < 0) lane.filtered = false;
  state.second = true, state.limit = row.limit2;
}

// A cell that no other thread touches in the first phase needs no atomic operations.
inline bool is_own(const Worker& worker, int cell) {
  return cell >= worker.own_from && cell < worker.own_to;
}

// Puts a word where a router, whose lane of the slot this is, takes it in.
inline void deliver(Wafer& w, int cell, int slot, Lane& lane, Wavelet word, const Worker& worker) {
  if (is_own(worker, cell)) {
    w.incoming[cell] |= 1u << slot, word.join(&lane.arriving);
    if (!w.visit[cell]) w.visit[cell] = 2;
  } else {
    __atomic_fetch_or(&w.incoming[cell], 1u << slot, __ATOMIC_RELAXED);
    word.join_relaxed(&lane.arriving);
    if (!w.visit[cell].load_relaxed()) w.visit[cell].store_relaxed(2);
  }
}

// A word leaves the rectangle, for the host if it asked for what does.
inline void leave(Wafer& w, int cell, int slot, int sides, Wavelet word) {
  if (!w.hosts[cell] || word.flag() & kControl) return;
  std::map<int, Exchange>& all = w.hosts[cell]->exchanges;
  each(uint32_t(sides), [&](int side) {
    const auto there = all.find(slot * kPorts + side);
    if (there != all.end()) there->second.out.push_back(word.word());
  });
}

[[gnu::always_inline]] inline void depart_lane(Wafer& w, int cell, int slot, Lane& lane, int* used,
                                               Worker* worker) {
  const Wavelet head = lane.router[0];
  const bool steered = is_steered(w, lane);
  if (steered && !lane.tx) {
    steer(w, cell, lane);
    if (!lane.tx) return;
  }
  int need = lane.tx;
  Lane& below = steered ? w.at(cell, w.slot[kMessages]) : lane;
  if (need & kRampPort) {
    if ((lane.filtered || head.flag() & kControl) && !passes_filter(w, cell, slot, lane))
      need &= ~kRampPort;
    else if (below.down && below.size >= below.depth)
      return;
  }
  if (need & *used) return;
  const int outer = need & 15 & ~w.sides[cell];
  if (outer & w.edges && !w.open)
    return worker->note({kOffWafer, cell, 0, 0, -1, w.colors[slot]});
  const int inner = need & w.sides[cell];  // PEs beyond take words and do nothing with them
  bool free = true;
  each(uint32_t(inner), [&](int side) {
    const Lane& there = (&lane)[w.reach[side] + arriving(w, lane, slot, side) - slot];
    free &= !there.router[1] && there.rx >> opposite(side) & 1;
  });
  if (!free) return;
  lane.go = true, lane.ports = need, *used |= need;
  const Wavelet leaves = steered ? head : forwarded(lane, head);
  if (lane.filtered && lane.tx & kRampPort && !hidden(head)) count_filtered(w, cell, slot, lane);
  if (outer && w.open) leave(w, cell, slot, outer, leaves);
  uint32_t* const links = &w.links[size_t(cell) * kPorts];
  each(uint32_t(need), [&](int port) { ++links[port]; });
  each(uint32_t(inner), [&](int side) {
    const int its = arriving(w, lane, slot, side);
    Lane& there = (&lane)[w.reach[side] + its - slot];
    deliver(w, cell + w.offset[side], its, there, leaves, *worker);
  });
  if (!steered) return;
  const bool last = head.flag() & kAdvance;
  if (need & kRampPort) {
    const Wavelet falls(head.word(), kValid | (last ? kControl : 0));
    deliver(w, cell, w.slot[kMessages], below, falls, *worker), lane.ports &= ~kRampPort;
  }
  if (last) lane.tx = 0, lane.color &= uint16_t(~31);
}

// 1. Depart: what leaves each router of rows [from, to).
inline void depart(Wafer& w, int from, int to, Worker* worker) {
  for (int cell = from * w.width; cell < to * w.width; ++cell) {
    if ((is_own(*worker, cell) ? int(w.visit[cell]) : w.visit[cell].load_relaxed()) != 1) continue;
    int used = 0;
    // Inlined: a call takes a PE 5 % longer where words pass.
    each(w.live[cell], [&](int slot) __attribute__((always_inline)) {
      Lane& lane = w.at(cell, slot);
      if (lane.router[0]) depart_lane(w, cell, slot, lane, &used, worker);
    });
  }
}

inline bool enters(const Lane& lane) { return !lane.router[1] && lane.rx & kRampPort; }

// Whether the ramp to the router has room in this cycle.
inline bool room_up(const Lane& lane) { return !lane.up[0] || !lane.up[1] || enters(lane); }

inline void push_word(Core& core, int slot, uint32_t word, bool control) {
  Lane& lane = core.lanes[slot];
  const int place = (lane.head + lane.size) % kQueues;
  lane.size += 1, lane.words[place] = word;
  lane.controls = (lane.controls & ~(1 << place)) | int(control) << place;
  core.queued |= 1u << slot;
}

inline void pop_word(Core& core, int slot) {
  Lane& lane = core.lanes[slot];
  lane.head = (lane.head + 1) % kQueues, lane.size += -1;
  if (!lane.size) core.queued &= ~(1u << slot);
}

// Of a color in a cycle: it moved, its neighbours see a change, it holds words; and what is recorded of it.
enum Change { kMoved = 1, kSeen = 2, kBusy = 4, kDone = 8 };

// What has entered moves the entering side, what has left the leaving side.
inline void switches(const Wafer& w, int slot, Lane& lane, Wavelet got, Wavelet left, Core& core) {
  const Command in = command(got), out = command(left);
  if (in == kNop && out == kNop) return;
  lane.pos_rx = obeyed(lane, lane.pos_rx, in) & 15, lane.pos_tx = obeyed(lane, lane.pos_tx, out) & 15;
  if (in == kTeardown) lane.torn_rx = true;
  if (out == kTeardown) lane.torn_tx = true, core.torn |= 1u << w.colors[slot];
  aim(w, core.cell, slot, lane);
}

// Moves one color, onto whose ramp a word may come.
template <bool kRecords>
[[gnu::always_inline]] inline uint32_t move_lane(Wafer& w, Core& core, int slot, Wavelet sent,
                                            Worker* worker) {
  Lane& lane = core.lanes[slot];
  const bool go = lane.go, own = lane.up[1] && enters(lane);
  const int rx = lane.rx;
  const Wavelet head = lane.router[0], left = go ? head : Wavelet(), full = lane.router[1];
  Wavelet first = go ? full : head, second = go ? Wavelet() : full;
  const int popped = lane.popped;
  lane.popped = 0, lane.go = false;

  // 1. Arrivals: from the CE, then from the neighbours, on WSE-3 a cycle later.
  const Wavelet came = lane.arriving;
  const bool for_ce = is_steered(w, lane) && w.colors[slot] == kMessages;  // words of messages
  Wavelet got = for_ce ? Wavelet() : came, waits;
  if (!w.wires.empty() && !for_ce) {
    Wavelet& wire = w.wires[size_t(core.cell) * size_t(w.slots) + size_t(slot)];
    const bool stays = wire && second;
    got = stays ? Wavelet() : wire, waits = wire = stays ? wire : came;
  }
  if ((own && got) || came.flag() & kClash)
    worker->note({kSameCycleArrival, core.cell, 0, 0, -1, w.colors[slot]});
  if (!got && own) got = lane.up[1];
  lane.arriving = {};
  if (got) (first ? second : first) = got;

  // 2. Down to the CE's queue: also if a word follows, as the queue may have got less depth since.
  const bool arrives = for_ce && came;  // recorded as if it had been in the router
  const bool follows = for_ce ? arrives : go && lane.ports & kRampPort;
  const Wavelet down = lane.down;
  const bool falls = down && (follows || lane.size + popped < lane.depth);
  const int ports = !kRecords ? 0 : arrives ? kRampPort : go ? int(lane.ports) : 0;
  const uint32_t done = !kRecords ? 0 : does(ports, go | arrives, got.count() | arrives, falls, popped,
                                             sent.count(), own);
  if (kRecords && falls) w.recorder->value(core.cell, slot, down.word());
  if (falls) push_word(core, slot, down.word(), down.flag() & kControl), lane.down = {};
  if (follows) lane.down = for_ce ? came : head;

  // 3. Up from the CE.
  bool climbs = own || sent;
  if (any(lane.up[0], lane.up[1], sent)) {
    Wavelet entered = lane.up[0], rising = own ? Wavelet() : lane.up[1];
    if (!rising && entered) rising = entered, entered = {}, climbs = true;
    lane.up[0] = sent ? sent : entered, lane.up[1] = rising;
  }
  lane.router[0] = first, lane.router[1] = second;

  if ((got.flag() | left.flag()) & (kControl | kAdvance) && !is_steered(w, lane))
    switches(w, slot, lane, got, left, core);
  const bool moved = go | falls | climbs | any(got, came);
  const bool seen = bool(second) != bool(full) || rx != lane.rx;
  const bool busy = any(first, waits, lane.up[0], lane.up[1], lane.down);
  return moved * kMoved | seen * kSeen | busy * kBusy | done * kDone;
}

// 5. Move: what arrives in a PE's router, by its ramp too, and what enters its queues.
template <bool kRecords>
[[gnu::always_inline]] inline uint32_t move(Wafer& w, Core& core, Wavelet sent, Worker* worker) {
  const int cell = core.cell;
  OpenLane* const lanes = kRecords ? w.recorder->lanes_of(cell) : nullptr;
  const uint32_t cycle = uint32_t(w.cycle);
  const uint32_t enters = sent && sent.slot() >= 0 ? 1u << sent.slot() : 0;
  uint32_t changes = 0, live = 0;
  each(w.live[cell] | w.incoming[cell] | core.popped | enters, [&](int slot) {
    const Wavelet own = enters >> slot & 1 ? sent : Wavelet();
    const uint32_t change = move_lane<kRecords>(w, core, slot, own, worker);
    changes |= change, live |= (change / kBusy & 1) << slot;
    if (kRecords && lanes) w.recorder->go_on(lanes, cell, slot, change / kDone, cycle);
  });
  w.live[cell] = live, w.incoming[cell] = core.popped = 0;
  return changes;
}

inline void changed(Wafer& w, int cell, bool seen_by_others) {
  w.next[cell].store_relaxed(1);
  if (!seen_by_others) return;
  each(uint32_t(w.sides[cell]), [&](int side) { w.next[cell + w.offset[side]].store_relaxed(1); });
}

}  // namespace
}  // namespace wafer::csl
