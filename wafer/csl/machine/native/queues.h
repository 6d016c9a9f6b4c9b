// Between CE and router: queues bound to colours, configuration registers, the host's streams.
#pragma once
#include <string>

#include "routers.h"

namespace wafer::csl {

class Queues : public Routers {
 public:
  Queues(int rows, int width, std::vector<int> colors, std::vector<FilterRow> filters,
         const Costs& costs, std::vector<Program> programs)
      : Routers(rows, width, std::move(colors), std::move(filters)), costs_(costs),
        programs_(std::move(programs)), cores_(cells()), hosts_(cells()),
        wake_(cells(), kNever) {}

  static constexpr int64_t kNever = INT64_MAX;

 protected:
  static const Program& program(const Core& core) { return *core.code; }
  OutputQueue& output(int cell, int queue) { return output_[size_t(cell) * queues_ + queue]; }

  // Words that a colour holds for the CE while no queue is bound to it.
  uint8_t own_depth(const Core& core, int slot) const {
    if (costs_.streams[colors_[slot]] == 1) return uint8_t(costs_.unbound_depth);
    return uint8_t(costs_.wse3 || core.program < 0 ? 0 : costs_.unbound_depth);
  }

  void bind_input(int cell, int queue, int slot) {
    Core& core = cores_[cell];
    const int was = core.in_slot[queue];
    core.in_slot[queue] = int8_t(slot);
    if (was >= 0) at(cell, was).depth = own_depth(core, was);
    if (slot >= 0) at(cell, slot).depth = uint8_t(costs_.input_depth[queue]);
  }

  int bound_to(const Core& core, int slot) const {
    for (int queue = 0; queue < kQueues; ++queue)
      if (core.in_slot[queue] == slot) return queue;
    return -1;
  }

  // A word leaves the CE. It goes on in the same cycle unless others wait before it.
  void send(int cell, const Sent& sent, Worker* worker) {
    Core& core = cores_[cell];
    if (!core.sending && worker->fresh.queue < 0) return void(worker->fresh = sent);
    store_fresh(cell, worker);
    queue_up(cell, sent);
  }
  void store_fresh(int cell, Worker* worker) {
    if (worker->fresh.queue >= 0) queue_up(cell, worker->fresh);
    worker->fresh.queue = -1;
  }
  void queue_up(int cell, const Sent& sent) {
    OutputQueue& out = output(cell, sent.queue);
    Core& core = cores_[cell];
    const int at = (out.head + out.size++) % kQueues;
    out.data[at] = sent.word, out.slot[at] = sent.slot, out.flag[at] = sent.flag;
    core.sending |= uint8_t(1 << sent.queue);
    if (out.size == costs_.output_depth[sent.queue]) core.full |= uint8_t(1 << sent.queue);
  }

  // Finds the word that goes onto the ramp in this cycle, of the lowest queue that can; those for
  // the host are taken here. Whether a word left.
  bool drain(int cell, Sent* sent, Worker* worker) {
    Core& core = cores_[cell];
    if (worker->fresh.queue >= 0) {
      *sent = worker->fresh;
      if (leaves(cell, sent, worker)) return worker->fresh.queue = -1, flush(core), true;
      store_fresh(cell, worker);
      return true;
    }
    for (uint32_t mask = core.sending; mask; mask &= mask - 1) {
      const int queue = __builtin_ctz(mask);
      OutputQueue& out = output(cell, queue);
      *sent = {int8_t(queue), out.slot[out.head], out.flag[out.head], out.data[out.head]};
      if (!leaves(cell, sent, worker)) continue;
      out.head = uint8_t((out.head + 1) % kQueues), --out.size;
      core.full &= uint8_t(~(1 << queue));
      if (!out.size) core.sending &= uint8_t(~(1 << queue)), flush(core);
      return true;
    }
    sent->slot = -1;
    return false;
  }

  // Whether the ramp, or the host, takes a word now; its slot is -1 if it was the host.
  bool leaves(int cell, Sent* sent, Worker* worker) {
    if (sent->slot < 0) sent->slot = cores_[cell].out_slot[sent->queue];
    if (sent->slot < 0) {
      worker->note({kNoColor, cell, 0, 0, -1, sent->queue});
      return false;
    }
    if (costs_.streams[colors_[sent->slot]] == 2) {
      host(cell).out[sent->slot].push_back(sent->word);
      sent->slot = -1;
      return true;
    }
    if (room_up(at(cell, sent->slot))) return true;
    sent->slot = -1;
    return false;
  }

  // Queues that the program waits to see empty.
  static void flush(Core& core) {
    const uint8_t done = core.flushing & uint8_t(~core.sending);
    core.flushed |= done, core.flushing &= uint8_t(~done);
  }

  // Words of the host that come in.
  bool feed(int cell) {
    Host& from = *hosts_[cell];
    bool moved = false;
    each(from.feeding, [&](int slot) {
      Lane& lane = at(cell, slot);
      if (lane.size >= lane.depth) return;
      push_word(cell, slot, from.in[slot].front(), false, cores_[cell]);
      from.in[slot].pop_front(), moved = true;
      if (from.in[slot].empty()) from.feeding &= ~(1u << slot);
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
  bool config_get(int cell, int address, int64_t* value) {
    const Core& core = cores_[cell];
    const int color = address & 31, queue = address & 7;
    if (address >= 0x7F20 && address < 0x7F38 && slot_[color & 31] >= 0) {
      const Lane& lane = at(cell, slot_[color]);
      *value = (lane.color & ~kTorn) | (lane.torn_tx ? kTorn : 0);
    } else if (address >= 0x7F40 && address < 0x7F58 && slot_[color] >= 0) {
      const Lane& lane = at(cell, slot_[color]);
      *value = (lane.switches & 0x9FFF) | lane.pos_tx << 13;
    } else if (address >= 0x7F60 && address < 0x7F70) {
      const int slot = address < 0x7F68 ? core.in_slot[queue] : core.out_slot[queue];
      *value = slot < 0 ? 0 : colors_[slot] | 1 << 5;
      if (slot >= 0 && address < 0x7F68) *value |= at(cell, slot).filter.on << 6;
    } else {
      return false;
    }
    return true;
  }

  bool config_set(int cell, int address, int value) {
    Core& core = cores_[cell];
    const int color = address & 31, queue = address & 7;
    if (address >= 0x7F20 && address < 0x7F38 && slot_[color] >= 0) {
      Lane& lane = at(cell, slot_[color]);
      lane.color = uint16_t(value);
      lane.torn_rx = lane.torn_tx = value & kTorn;
      aim(lane);
    } else if (address >= 0x7F40 && address < 0x7F58 && slot_[color] >= 0) {
      Lane& lane = at(cell, slot_[color]);
      lane.switches = uint16_t(value);
      lane.pos_rx = lane.pos_tx = value >> 13 & 3;
      aim(lane);
    } else if (address >= 0x7F60 && address < 0x7F70) {
      const int slot = value & 1 << 5 && (value & 31) < kColors ? slot_[value & 31] : -1;
      if (value & 1 << 5 && slot < 0) return false;
      if (address >= 0x7F68) {
        core.out_slot[queue] = int8_t(slot);
      } else {
        bind_input(cell, queue, slot);
        if (slot >= 0) {
          FilterState& filter = at(cell, slot).filter;
          filter.on = filter.row >= 0 && value & 1 << 6;
        }
      }
    } else {
      return false;
    }
    return true;
  }

  void leave_teardown(int cell, int color) {
    Lane& lane = at(cell, slot_[color]);
    lane.torn_rx = lane.torn_tx = false;
    aim(lane);
  }

  const Costs costs_;
  const std::vector<Program> programs_;
  Arena<Core> cores_;
  Arena<OutputQueue> output_;
  size_t queues_ = 0;  // for output, of each PE
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<int64_t> wake_;  // when the task's own thread has paid
};

}  // namespace wafer::csl
