// Between CE and router: queues bound to colours, configuration registers, the host's streams.
#pragma once
#include <string>

#include "routers.h"

namespace wafer::csl {

class Queues : public Routers {
 public:
  Queues(int rows, int width, int edges, std::vector<int> colors, std::vector<FilterRow> filters,
         const Costs& costs, std::vector<Program> programs)
      : Routers(rows, width, edges, std::move(colors), std::move(filters)), costs_(costs),
        programs_(std::move(programs)), cores_(cells()), hosts_(cells()),
        wake_(cells(), kNever) {}

  static constexpr int64_t kNever = INT64_MAX;

 protected:
  static const Program& program(const Core& core) { return *core.code; }

  // Words that a colour holds for the CE while no queue is bound to it.
  uint8_t own_depth(const Core& core, int slot) const {
    if (costs_.streams[colors_[slot]] == 1) return uint8_t(costs_.unbound_depth);
    return uint8_t(costs_.wse3 || core.program < 0 ? 0 : costs_.unbound_depth);
  }

  void bind_input(Core& core, int queue, int slot) {
    const int was = core.in_slot[queue];
    core.in_slot[queue] = int8_t(slot);
    if (was >= 0) core.lanes[was].depth = own_depth(core, was);
    if (slot >= 0) core.lanes[slot].depth = uint8_t(costs_.input_depth[queue]);
  }

  int bound_to(const Core& core, int slot) const {
    for (int queue = 0; queue < kQueues; ++queue)
      if (core.in_slot[queue] == slot) return queue;
    return -1;
  }

  // A word leaves the CE. It goes on in the same cycle unless others wait before it.
  void send(Core& core, Sent sent, Worker* worker) {
    if (!core.sending && !worker->fresh) return void(worker->fresh = sent);
    store_fresh(core, worker);
    queue_up(core, sent);
  }
  void store_fresh(Core& core, Worker* worker) {
    if (worker->fresh) queue_up(core, worker->fresh);
    worker->fresh = {};
  }
  void queue_up(Core& core, Sent sent) {
    OutputQueue& out = core.output[sent.queue()];
    const int at = (out.head + out.size++) % kQueues;
    const uint8_t bit = uint8_t(1 << sent.queue());
    out.data[at] = sent.word(), out.slot[at] = int8_t(sent.slot()), out.flag[at] = sent.flag();
    core.sending |= bit;
    if (out.size == costs_.output_depth[sent.queue()]) core.full |= bit;
  }

  // The word that goes onto the ramp in this cycle, of the lowest queue that can, if there is one;
  // those for the host are taken here.
  Sent drain(Core& core, bool* moved, Worker* worker) {
    if (const Sent fresh = worker->fresh) {
      *moved = true;
      const int slot = leaves(core, fresh, worker);
      if (slot == kStays) return store_fresh(core, worker), Sent();
      worker->fresh = {}, flush(core);
      return fresh.to(slot);
    }
    for (uint32_t mask = core.sending; mask; mask &= mask - 1) {
      const int queue = __builtin_ctz(mask);
      OutputQueue& out = core.output[queue];
      const Sent sent(queue, out.slot[out.head], out.flag[out.head], out.data[out.head]);
      const int slot = leaves(core, sent, worker);
      if (slot == kStays) continue;
      out.head = uint8_t((out.head + 1) % kQueues), --out.size;
      core.full &= uint8_t(~(1 << queue));
      if (!out.size) core.sending &= uint8_t(~(1 << queue)), flush(core);
      *moved = true;
      return sent.to(slot);
    }
    return {};
  }

  static constexpr int kToHost = -1, kStays = -2;
  // Where a word can go now: the slot of its ramp, or one of the two above.
  int leaves(Core& core, Sent sent, Worker* worker) {
    const int slot = sent.slot() >= 0 ? sent.slot() : core.out_slot[sent.queue()];
    if (slot < 0) {
      worker->note({kNoColor, core.cell, 0, 0, -1, sent.queue()});
      return kStays;
    }
    if (!(to_host_ >> slot & 1)) {
      const int its = swapped(core.lanes[slot], slot, kRamp);
      return room_up(core.lanes[its]) ? its : kStays;
    }
    host(core.cell).out[slot].push_back(sent.word());
    return kToHost;
  }

  // Queues that the program waits to see empty.
  static void flush(Core& core) {
    const uint8_t done = core.flushing & uint8_t(~core.sending);
    core.flushed |= done, core.flushing &= uint8_t(~done);
  }

  // Words of the host that come in.
  bool feed(Core& core) {
    Host& from = *hosts_[core.cell];
    bool moved = false;
    each(core.feeding, [&](int slot) {
      Lane& lane = core.lanes[slot];
      if (lane.size >= lane.depth) return;
      push_word(core, slot, from.in[slot].front(), false);
      from.in[slot].pop_front(), moved = true;
      if (from.in[slot].empty()) core.feeding &= ~(1u << slot);
    });
    return moved;
  }

  Host& host(int cell) {
    if (!hosts_[cell]) {
      hosts_[cell] = std::make_unique<Host>();
      hosts_[cell]->in.resize(slots_), hosts_[cell]->out.resize(slots_);
    }
    return *hosts_[cell];
  }

  // A configuration register by its word address; CONFIG in codes.py.
  bool config_get(const Core& core, int address, int64_t* value) {
    const int color = address & 31, queue = address & 7;
    if (address >= 0x7F20 && address < 0x7F38 && slot_[color & 31] >= 0) {
      const Lane& lane = core.lanes[slot_[color]];
      *value = (lane.color & ~kTorn) | (lane.torn_tx ? kTorn : 0);
    } else if (address >= 0x7F40 && address < 0x7F58 && slot_[color] >= 0) {
      const Lane& lane = core.lanes[slot_[color]];
      *value = (lane.switches & 0x9FFF) | lane.pos_tx << 13;
    } else if (address >= 0x7F58 && address < 0x7F60) {
      *value = core.thread_words[queue];
    } else if (address >= 0x7F60 && address < 0x7F70) {
      const int slot = address < 0x7F68 ? core.in_slot[queue] : core.out_slot[queue];
      *value = slot < 0 ? 0 : colors_[slot] | 1 << 5;
      if (slot >= 0 && address < 0x7F68) *value |= core.lanes[slot].filter.on << 6;
    } else {
      return false;
    }
    return true;
  }

  bool config_set(Core& core, int address, int value) {
    const int color = address & 31, queue = address & 7;
    if (address >= 0x7F20 && address < 0x7F38 && slot_[color] >= 0) {
      // What is swapped needs the other colour of its pair, which no other PE may have.
      if (value & (kSwapX | kSwapY) && partner_[slot_[color]] < 0) return false;
      Lane& lane = core.lanes[slot_[color]];
      lane.color = uint16_t(value);
      lane.torn_rx = lane.torn_tx = value & kTorn;
      aim(lane);
    } else if (address >= 0x7F40 && address < 0x7F58 && slot_[color] >= 0) {
      Lane& lane = core.lanes[slot_[color]];
      lane.switches = uint16_t(value);
      lane.pos_rx = lane.pos_tx = value >> 13 & 3;
      aim(lane);
    } else if (address >= 0x7F58 && address < 0x7F60) {
      core.thread_words[queue] = uint16_t(value);
    } else if (address >= 0x7F60 && address < 0x7F70) {
      const int slot = value & 1 << 5 && (value & 31) < kColors ? slot_[value & 31] : -1;
      if (value & 1 << 5 && slot < 0) return false;
      if (address >= 0x7F68) {
        core.out_slot[queue] = int8_t(slot);
      } else {
        bind_input(core, queue, slot), core.encoded |= uint8_t(1 << queue);
        if (slot >= 0) {
          FilterState& filter = core.lanes[slot].filter;
          filter.on = filter.row >= 0 && value & 1 << 6;
        }
      }
    } else {
      return false;
    }
    return true;
  }

  void leave_teardown(Core& core, int color) {
    Lane& lane = core.lanes[slot_[color]];
    lane.torn_rx = lane.torn_tx = false;
    aim(lane);
  }

  const Costs costs_;
  const std::vector<Program> programs_;
  Arena<Core> cores_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<int64_t> wake_;  // when the task's own thread has paid
};

}  // namespace wafer::csl
