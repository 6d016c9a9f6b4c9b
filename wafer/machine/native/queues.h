// Between CE and router: queues bound to colors, configuration registers, the host's streams.
#pragma once
#include "routers.h"

namespace wafer::csl {
namespace {

inline const Program& program(const Core& core) { return *core.code; }

// Words that a color holds for the CE while no queue is bound to it.
inline uint8_t own_depth(const Wafer& w, const Core& core, int slot) {
  if (w.costs.streams[w.colors[slot]] == 1) return uint8_t(w.costs.unbound_depth);
  return uint8_t(w.costs.wse3 || core.program < 0 ? 0 : w.costs.unbound_depth);
}

inline void bind_input(Wafer& w, Core& core, int queue, int slot) {
  const int was = core.in_slot[queue];
  core.in_slot[queue] = int8_t(slot);
  if (was >= 0) core.lanes[was].depth = own_depth(w, core, was);
  if (slot >= 0) core.lanes[slot].depth = uint8_t(w.costs.input_depth[queue]);
}

inline int bound_to(const Core& core, int slot) {
  for (int queue = 0; queue < kQueues; ++queue)
    if (core.in_slot[queue] == slot) return queue;
  return -1;
}

inline Host& host(Wafer& w, int cell) {
  if (!w.hosts[cell]) w.hosts[cell] = std::make_unique<Host>();
  return *w.hosts[cell];
}

inline void queue_up(Wafer& w, Core& core, Wavelet sent) {
  OutputQueue& out = core.output[sent.queue()];
  const int bit = 1 << sent.queue();
  const int place = (out.head + out.size) % kQueues;
  out.words[place] = sent, out.since[place] = uint32_t(w.cycle), out.size += 1;
  core.sending |= bit;
  if (w.recorder) {
    w.recorder->queue_word(core.cell, sent.queue(), false);
    w.recorder->value(core.cell, w.slots + sent.queue(), sent.word());
  }
  if (out.size == w.costs.output_depth[sent.queue()]) core.full |= bit;
}

inline void store_fresh(Wafer& w, Core& core, Worker* worker) {
  if (worker->fresh) queue_up(w, core, worker->fresh);
  worker->fresh = {};
}

// A word leaves the CE. It goes on in the same cycle unless it or others before it have to wait.
inline void send(Wafer& w, Core& core, Wavelet sent, Worker* worker) {
  if (!core.sending && !worker->fresh && !w.costs.output_wait) return void(worker->fresh = sent);
  store_fresh(w, core, worker);
  queue_up(w, core, sent);
}

constexpr int kToHost = -1, kStays = -2;

// Where a word can go now: the slot of its ramp, or one of the two above.
inline int leaves(Wafer& w, Core& core, Wavelet sent, Worker* worker) {
  const int slot = sent.slot() >= 0 ? sent.slot() : core.out_slot[sent.queue()];
  if (slot < 0) {
    worker->note({kNoColor, core.cell, 0, 0, -1, sent.queue()});
    return kStays;
  }
  if (!(w.to_host >> slot & 1)) {
    const int its = swapped(w, core.lanes[slot], slot, kRamp);
    return room_up(core.lanes[its]) ? its : kStays;
  }
  Exchange& to = host(w, core.cell).exchanges[slot * kPorts + kRamp];
  if (int64_t(to.out.size()) - to.expected >= w.held) return kStays;
  to.out.push_back(sent.word());
  return kToHost;
}

constexpr uint32_t kRelayed = 3u << 30;  // bits of a control wavelet that passes through as a word

// What the wavelets of an output have besides their words.
inline int header(const Wafer& w, const FabricRow& row) {
  const int slot = row.color >= 0 ? w.slot[row.color] : -1;
  return Wavelet(row.queue, slot, kValid | (row.control ? kControl : 0), 0).header();
}

inline Wavelet outgoing(const Core& core, const FabricRow& row, uint32_t word, int header) {
  if (row.transform <= 0 || (word & kRelayed) != kRelayed) return {word, header};
  return {(word & ~kRelayed) ^ uint32_t(core.transform & 63) << 16, header | kControl};
}

// Queues that the program waits to see empty.
inline void flush(Core& core) {
  const int done = core.flushing & ~core.sending;
  core.flushed |= done, core.flushing &= ~done;
}

// The word that goes onto the ramp in this cycle, of the lowest queue that can, if there is one;
// those for the host are taken here. Inlined: a call takes a PE 8 % longer where words pass.
[[gnu::always_inline]] inline Wavelet drain(Wafer& w, Core& core, bool* moved, Worker* worker) {
  if (const Wavelet fresh = worker->fresh) {
    *moved = true;
    const int slot = leaves(w, core, fresh, worker);
    if (slot == kStays) return store_fresh(w, core, worker), Wavelet();
    worker->fresh = {}, flush(core);
    return fresh.onto(slot);
  }
  for (uint32_t mask = uint32_t(core.sending); mask; mask &= mask - 1) {
    const int queue = __builtin_ctz(mask);
    OutputQueue& out = core.output[queue];
    if (uint32_t(w.cycle) - out.since[out.head] < uint32_t(w.costs.output_wait)) {
      *moved = true;  // with time
      continue;
    }
    const Wavelet sent = out.words[out.head];
    const int slot = leaves(w, core, sent, worker);
    if (slot == kStays) continue;
    out.head = (out.head + 1) % kQueues, out.size += -1;
    if (w.recorder) w.recorder->queue_word(core.cell, queue, true);
    core.full &= ~(1 << queue);
    if (!out.size) core.sending &= ~(1 << queue), flush(core);
    *moved = true;
    return sent.onto(slot);
  }
  return {};
}

// Words of the host that come in: by the ramp into the queue, by a side into the router.
inline bool feed(Wafer& w, Core& core) {
  bool moved = false;
  core.feeding = false;
  for (auto& [place, exchange] : w.hosts[core.cell]->exchanges) {
    if (exchange.in.empty()) continue;
    const int slot = place / kPorts, port = place % kPorts;
    const Wavelet word = exchange.in.front();
    Lane& lane = core.lanes[slot];
    core.feeding = true;
    if (port == kRamp ? lane.size >= lane.depth : lane.router[1] || !(lane.rx >> port & 1)) continue;
    if (port == kRamp) push_word(core, slot, word.word(), word.flag() & kControl);
    else word.join(&lane.arriving), w.incoming[core.cell] |= 1u << slot;
    if (w.recorder && port == kRamp) {
      w.recorder->word(core.cell, slot, kQueued);
      w.recorder->value(core.cell, slot, word.word());
    }
    exchange.in.pop_front(), moved = true;
  }
  return moved;
}

// Queues that are empty, and those that are full from bit 8 on; an input queue without a color is empty.
inline int status(const Core& core, bool out) {
  if (out) return (~core.sending & 0xFF) | core.full << 8;
  int bits = 0xFF;
  for (int queue = 0; queue < kQueues; ++queue) {
    if (core.in_slot[queue] < 0) continue;
    const Lane& lane = core.lanes[core.in_slot[queue]];
    bits ^= (lane.size > 0) << queue, bits |= (lane.size >= lane.depth) << (queue + 8);
  }
  return bits;
}

// Reads or writes a configuration register by its word address, CONFIG in codes.py; false if there is
// none, or none to be so.
inline bool use_register(Wafer& w, Core& core, int address, bool sets, int64_t* value) {
  const int queue = address & 7, word = int(*value);
  const int its = (address & 31) < kColors ? w.slot[address & 31] : -1;
  if (address >= 0x7F20 && address < 0x7F38 && its >= 0) {
    Lane& lane = core.lanes[its];
    if (!sets) return *value = (lane.color & ~kTorn) | (lane.torn_tx ? kTorn : 0), true;
    // What is swapped needs the other color of its pair, which no other PE may have.
    if (word & (kSwapX | kSwapY) && w.partner[its] < 0) return false;
    if (word & kSteered && !has_messages(w, its)) return false;
    lane.color = uint16_t(word), lane.torn_rx = lane.torn_tx = word & kTorn;
    return aim(w, core.cell, its, lane), true;
  }
  if (address >= 0x7F40 && address < 0x7F58 && its >= 0) {
    Lane& lane = core.lanes[its];
    if (!sets) return *value = (lane.switches & 0x9FFF) | lane.pos_tx << 13, true;
    lane.switches = uint16_t(word), lane.pos_rx = lane.pos_tx = word >> 13 & 3;
    return aim(w, core.cell, its, lane), true;
  }
  if (address >= 0x7FE0 && address < 0x7FF8 && its >= 0 && !w.beside.empty()) {
    uint16_t& held = w.beside[size_t(core.cell) * size_t(w.slots) + size_t(its)];
    if (!sets) return *value = held, true;
    held = uint16_t(word);
    return aim(w, core.cell, its, core.lanes[its]), true;
  }
  if (address >= 0x7F58 && address < 0x7F60) {
    if (sets) core.thread_words[queue] = uint16_t(word); else *value = core.thread_words[queue];
    return true;
  }
  if (address == 0x7F74 || address == 0x7F75 || address == 0x7F78) {
    uint16_t& held = address == 0x7F78 ? core.exceptions : address & 1 ? core.generator : core.transform;
    if (sets) held = uint16_t(word); else *value = held;
    return true;
  }
  if (address == 0x7F76 || address == 0x7F77) return !sets && (*value = status(core, address & 1), true);
  if (address >= 0x7F80 && address < 0x7FE0 && its >= 0) {
    if (w.filtering.empty() || filter_of(w, core.cell, its).row < 0) return false;
    FilterState& filter = filter_of(w, core.cell, its);
    int32_t& held = address < 0x7FA0 ? filter.counter : address < 0x7FC0 ? filter.limit : filter.most;
    if (sets) held = uint16_t(word); else *value = held;
    return true;
  }
  if (address < 0x7F60 || address >= 0x7F70) return false;
  const bool in = address < 0x7F68;
  if (!sets) {
    const int slot = in ? core.in_slot[queue] : core.out_slot[queue];
    *value = slot < 0 ? 0 : w.colors[slot] | 1 << 5;
    if (slot >= 0 && in) *value |= core.lanes[slot].filtered << 6;
    return true;
  }
  const int slot = word & 1 << 5 && (word & 31) < kColors ? w.slot[word & 31] : -1;
  if (word & 1 << 5 && slot < 0) return false;
  if (!in) return core.out_slot[queue] = int8_t(slot), true;
  bind_input(w, core, queue, slot), core.encoded |= 1 << queue;
  if (slot >= 0 && !w.filtering.empty())
    core.lanes[slot].filtered = filter_of(w, core.cell, slot).row >= 0 && word & 1 << 6;
  return true;
}

inline void leave_teardown(Wafer& w, Core& core, int color) {
  Lane& lane = core.lanes[w.slot[color]];
  lane.torn_rx = lane.torn_tx = false;
  aim(w, core.cell, w.slot[color], lane);
}

}  // namespace
}  // namespace wafer::csl
