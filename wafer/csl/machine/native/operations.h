// Operations on descriptors: issue, one step, end. Elements go one after another, in order.
#pragma once
#include "elements.h"
#include "queues.h"

namespace wafer::csl {

constexpr uint32_t kEndless = UINT32_MAX;
constexpr int kEndlessExtent = 0x7FFF;  // a fabric descriptor of this length ends by control alone

inline int field(uint64_t descriptor, int k) { return int(descriptor >> 16 * k & 0xFFFF); }

class Operations : public Queues {
 public:
  using Queues::Queues;

 protected:
  Operation& running(int cell, int thread) {
    return operations_[size_t(cell) * (kThreads + 1) + thread];
  }
  int64_t& reg(const Core& core, int k) { return registers_[core.registers + core.base + k]; }
  Dsr& dsr(const Core& core, int file, int id) {
    return dsrs_[core.dsrs + size_t(file) * program(core).dsrs + id];
  }
  Fifo& fifo(const Core& core, int row) { return fifos_[core.fifos + row]; }

  // Where some bytes are, or none: outside of what the program declares nothing can be written,
  // and zeros are read right behind it.
  uint8_t* locate(const Core& core, int64_t address, int bytes, bool write) {
    const int64_t end = int64_t(program(core).memory.size()) + (write ? 0 : kPad);
    return address + bytes > end ? nullptr : &memory_[core.memory + address];
  }

  void fault(int cell, int kind, int pc, int64_t detail, Worker* worker) {
    const Core& core = cores_[cell];
    worker->note({kind, cell, int32_t(core.task), core.task_id, pc, detail});
  }

  static void note(int cell, const Operation& o, int kind, int64_t detail, Worker* worker) {
    worker->note({kind, cell, o.task, o.task_id, o.pc, detail});
  }

  void block(Core& core, int gate, int id) { core.blocked[set_of(gate)] |= 1u << id; }
  void unblock(Core& core, int gate, int id) { core.blocked[set_of(gate)] &= ~(1u << id); }
  bool is_blocked(const Core& core, Gate gate, int id) const {
    return core.blocked[set_of(int(gate))] >> id & 1;
  }

  // Row a of the operations, begun by the task's thread at pc. Whether the thread goes on at once.
  bool operate(int cell, int pc, const Instruction& i, Worker* worker) {
    Core& core = cores_[cell];
    const Program& p = program(core);
    const OperationRow& row = p.operations[i.a];
    Operation o{};
    o.row = i.a, o.pc = pc, o.control_ends = row.control_ends;
    o.task = int32_t(core.task), o.task_id = core.task_id;
    o.effects[0] = {int8_t(row.action), int8_t(row.target)};
    o.on_control = {int8_t(row.control_action), int8_t(row.control_target)};
    const Widths widths = widths_of(DsdOp(row.op));
    const int32_t kinds[4] = {row.dest, row.src0, row.src1, row.scalar};
    const uint8_t width[4] = {widths.dest, widths.src0, widths.src1, widths.scalar};
    Issue issue{row.asynchronous != 0, row.thread, row.priority, -1, 1};
    int from = i.b, lengths[4] = {-1, -1, -1, -1};
    for (int k = 0; k < 4; ++k) {
      Stream& s = stream(o, k);
      s.width = width[k];
      if (Operand(kinds[k]) == Operand::kNone) continue;
      lengths[k] = resolve(cell, Operand(kinds[k]), reg(core, from++), k, &o, &issue);
      if (issue.problem) return fault(cell, issue.problem, pc, issue.detail, worker), false;
    }
    if (row.index >= 0) o.index = int32_t(uint16_t(reg(core, from)));
    for (int k = 0; k < 4 && row.index >= 0; ++k)
      if (stream(o, k).indexed) stream(o, k).base += 2 * o.index, stream(o, k).indexed = false;
    o.length = length(o, lengths);
    o.wide = uint8_t(elements_per_cycle(o, DsdOp(row.op)));

    const bool apart = issue.asynchronous && issue.fabric;
    const int thread = !apart ? kMainThread : issue.thread >= 0 ? issue.thread : issue.queue;
    if (thread < 0) return fault(cell, kNoThread, pc, 0, worker), false;
    if (core.threads >> thread & 1) return fault(cell, kThreadInUse, pc, thread, worker), false;
    constexpr uint8_t kRanks[3] = {0, 2, 3};  // the task's own goes between low and medium
    o.rank = apart ? kRanks[issue.priority < 0 ? 0 : issue.priority] : 1;
    core.threads |= 1u << thread;
    core.main = apart ? Main::kRunning : Main::kOperating;
    running(cell, thread) = o;
    if (apart && i.c >= 0) reg(core, i.c) = 1;
    if (o.length == 0) finish(cell, thread, true);
    return core.main == Main::kRunning;
  }

  // One step of the operation that is first in rank; whether there was one.
  bool step_operations(int cell, Worker* worker) {
    Core& core = cores_[cell];
    int best = -1, rank = -1;
    each(core.threads, [&](int thread) {
      const Operation& o = running(cell, thread);
      if (o.rank > rank && ready(cell, thread, o)) best = thread, rank = o.rank;
    });
    if (best < 0) return false;
    execute(cell, best, worker);
    return true;
  }

  // The colour that a fabric operand reads, as a slot; -1 if its queue is bound to none.
  int source_slot(const Core& core, const Stream& s) const {
    const FabricRow& row = program(core).fabrics[s.row];
    if (row.queue >= 0 && core.in_slot[row.queue] >= 0) return core.in_slot[row.queue];
    return row.color >= 0 ? slot_[row.color] : -1;
  }

  // Slots that operations read.
  uint32_t being_read(int cell) {
    const Core& core = cores_[cell];
    uint32_t out = 0;
    each(core.threads, [&](int thread) {
      const Operation& o = running(cell, thread);
      for (const Stream* s : {&o.src0, &o.src1})
        if (s->kind == Operand::kFabric && source_slot(core, *s) >= 0)
          out |= 1u << source_slot(core, *s);
    });
    return out;
  }

  // The CE takes the word at the head; its place is free for the ramp from the next cycle on.
  void take(Core& core, Lane& lane, int slot) {
    ++lane.popped, core.popped |= 1u << slot;
    pop_word(core, lane, slot);
  }

  std::vector<uint8_t> memory_;
  std::vector<int64_t> registers_;
  std::vector<Dsr> dsrs_;
  std::vector<Fifo> fifos_;
  std::vector<Operation> operations_;

 private:
  // What the operands of an operation say together.
  struct Issue {
    bool asynchronous;
    int thread, priority, queue;  // queue: of the destination, else of the first source
    int effects;
    bool fabric = false;
    int problem = kNoFault;
    int64_t detail = 0;
  };

  int set_of(int gate) const {
    return !costs_.wse3 && Gate(gate) == Gate::kColor ? int(Gate::kData) : gate;
  }

  static Stream& stream(Operation& o, int k) {
    Stream* const all[4] = {&o.dest, &o.src0, &o.src1, &o.scalar};
    return *all[k];
  }

  // Sets up operand k; returns its length, -1 if it has none.
  int resolve(int cell, Operand kind, uint64_t value, int k, Operation* o, Issue* issue) {
    Core& core = cores_[cell];
    const Program& p = program(core);
    Stream& s = stream(*o, k);
    if (kind == Operand::kDsr) {
      const Dsr& loaded = dsr(core, int(value >> 8), int(value & 0xFF));
      if (int(value & 0xFF) >= p.dsrs || loaded.row < 0) {
        issue->problem = kDsrNotLoaded, issue->detail = int64_t(value);
        return 0;
      }
      const DsrRow& row = p.dsr_loads[loaded.row];
      s.dsr = int16_t(value);
      kind = Operand(row.kind), value = loaded.value;
      issue->asynchronous |= row.asynchronous != 0;
      if (issue->thread < 0) issue->thread = row.thread;
      o->effects[issue->effects++] = {int8_t(row.action), int8_t(row.target)};
      hear(row.control_ends, row.control_action, row.control_target, o);
    }
    s.kind = kind, s.base = int32_t(value);
    switch (kind) {
      case Operand::kMemory:
        s.base = field(value, 0), s.step = int16_t(field(value, 2)) * s.width;
        s.indexed = field(value, 3) >> 15;
        if (s.indexed) s.base += 2 * (field(value, 3) & 0x7FFF);
        return field(value, 1);
      case Operand::kShaped: {
        s.base = field(value, 0), s.row = int16_t(field(value, 1));
        const ShapeRow& shape = p.shapes[s.row];
        return shape.n0 * shape.n1 * shape.n2 * shape.n3;
      }
      case Operand::kFabric: return resolve_fabric(cell, value, k, o, issue);
      case Operand::kFifo: {
        s.row = int16_t(value);
        const Fifo& fifo = this->fifo(core, s.row);
        const int length = k == 0 ? fifo.write_length : fifo.read_length;
        return length ? length : -1;
      }
      case Operand::kPointer: s.base = int32_t(value & 0xFFFF); return -1;
      default: return -1;
    }
  }

  int resolve_fabric(int cell, uint64_t value, int k, Operation* o, Issue* issue) {
    Core& core = cores_[cell];
    const Program& p = program(core);
    Stream& s = stream(*o, k);
    s.row = int16_t(field(value, 0));
    const FabricRow& row = p.fabrics[s.row];
    issue->fabric = true;
    if (issue->queue < 0) issue->queue = row.queue;
    if (row.sends != (k == 0)) issue->problem = kWrongOperand, issue->detail = row.sends;
    if (!row.sends) {
      // Old programs name a queue and a colour without binding one to the other.
      if (row.queue >= 0 && row.color >= 0 && core.in_slot[row.queue] < 0 &&
          bound_to(core, slot_[row.color]) < 0)
        bind_input(cell, row.queue, slot_[row.color]);
      if (source_slot(core, s) < 0) issue->problem = kNoColor, issue->detail = row.queue;
      hear(row.control_ends, row.control_action, row.control_target, o);
    }
    const QueueRow* queue = row.queue < 0 ? nullptr : &p.queues[row.queue + kQueues * (k == 0)];
    if (issue->priority < 0) issue->priority = row.priority;
    if (issue->priority < 0 && queue) issue->priority = queue->priority;
    const int length = field(value, 1);
    return length == kEndlessExtent ? -2 : length;
  }

  static void hear(int ends, int action, int target, Operation* o) {
    o->control_ends |= ends != 0;
    if (!o->on_control.action) o->on_control = {int8_t(action), int8_t(target)};
  }

  // That of the first source, of the second, of the destination; 1 if all are single values.
  static uint32_t length(const Operation&, const int* lengths) {
    bool any = false;
    for (const int k : {1, 2, 0}) {
      if (lengths[k] == -2) return kEndless;
      if (lengths[k] > 0) return uint32_t(lengths[k]);
      any |= lengths[k] == 0;
    }
    return any ? 0 : 1;
  }

  // More than one if all operands lie side by side in memory, in whole 32-bit words.
  int elements_per_cycle(const Operation& o, DsdOp op) const {
    if (o.dest.kind != Operand::kMemory) return 1;
    for (const Stream* s : {&o.dest, &o.src0, &o.src1})
      if (s->kind == Operand::kMemory ? s->step != s->width || s->base % 4 || s->indexed
                                      : s->kind != Operand::kScalar && s->kind != Operand::kNone)
        return 1;
    return costs_.width[int(op)];
  }

  bool ready(int cell, int thread, const Operation& o) {
    Core& core = cores_[cell];
    if (thread != kMainThread && is_blocked(core, Gate::kThread, thread)) return false;
    for (const Stream* s : {&o.src0, &o.src1}) {
      if (s->kind == Operand::kFabric) {
        const int slot = source_slot(core, *s);
        if (slot < 0 || !at(cell, slot).size) return false;
      } else if (s->kind == Operand::kFifo && lacks(core, thread, *s, true)) {
        return false;
      }
    }
    if (o.dest.kind == Operand::kFifo) return !lacks(core, thread, o.dest, false);
    return o.dest.kind != Operand::kFabric ||
           has_room(cell, program(core).fabrics[o.dest.row].queue);
  }

  bool short_of(const Core& core, const Stream& s, bool reads) {
    const Fifo& fifo = this->fifo(core, s.row);
    const int room = capacity(core, s) - fifo.used;
    return (reads ? fifo.used : room) < s.width / 2;
  }
  int capacity(const Core& core, const Stream& s) const {
    return program(core).fifos[s.row].bytes / s.width * (s.width / 2);
  }

  // Whether an operation has to wait for a FIFO.
  bool lacks(Core& core, int thread, const Stream& s, bool reads) {
    if (!short_of(core, s, reads)) return false;
    (reads ? fifo(core, s.row).starved : fifo(core, s.row).choked) = true;
    return !ends_short(core, thread, s, reads);
  }
  // 1: the operation ends; 2: one that the task waits for ends, others wait.
  bool ends_short(const Core& core, int thread, const Stream& s, bool reads) const {
    const FifoRow& row = program(core).fifos[s.row];
    const int ends = reads ? row.empty_ends : row.full_ends;
    return ends == 1 || (ends == 2 && thread == kMainThread);
  }

  int address(const Core& core, const Stream& s, uint32_t k, int offset) const {
    int at = s.base + (s.indexed ? offset : 0);
    if (s.kind == Operand::kShaped) {
      const ShapeRow& shape = program(core).shapes[s.row];
      const int n[4] = {shape.n0, shape.n1, shape.n2, shape.n3};
      const int step[4] = {shape.s0, shape.s1, shape.s2, shape.s3};
      for (int d = 3; d >= 0; --d) at += int(k % uint32_t(n[d])) * step[d] * s.width, k /= uint32_t(n[d]);
    } else {
      at += int(k) * s.step;
    }
    return at & 0xFFFF;
  }

  void execute(int cell, int thread, Worker* worker) {
    Core& core = cores_[cell];
    Operation& o = running(cell, thread);
    for (const Stream* s : {&o.src0, &o.src1, &o.dest})
      if (s->kind == Operand::kFifo && short_of(core, *s, s != &o.dest))
        return finish(cell, thread, false);
    const DsdOp op = DsdOp(program(core).operations[o.row].op);
    int offset = 0;  // in bytes, from a wavelet's index
    for (const Stream* s : {&o.src0, &o.src1}) {
      if (s->kind != Operand::kFabric) continue;
      const int slot = source_slot(core, *s);
      Lane& lane = at(cell, slot);
      if (lane.front_is_control()) return take_control(cell, thread, slot);
      if (s->width == 2) offset = 2 * int(lane.front() >> 16);
      if (op == DsdOp::kDfilt) return take(core, lane, slot);
    }
    const uint32_t end = std::min<uint64_t>(o.length, uint64_t(o.done) + o.wide);
    for (uint32_t k = o.done; k < end; ++k) {
      uint32_t values[3] = {};
      for (int j = 1; j < 4; ++j)
        if (!read(cell, o, j, k, offset, &values[j - 1], worker)) return;
      const uint32_t value = element(op, values[0], values[1], values[2], &o.carry);
      if (!write(cell, o, k, offset, value, worker)) return;
    }
    if (o.length != kEndless) o.done = end; else ++o.done;
    if (o.done == o.length) finish(cell, thread, true);
  }

  // A control wavelet at the head of a queue that an operation reads.
  void take_control(int cell, int thread, int slot) {
    Core& core = cores_[cell];
    Operation& o = running(cell, thread);
    take(core, at(cell, slot), slot);
    apply(core, o.on_control);
    const bool counted = DsdOp(program(core).operations[o.row].op) == DsdOp::kDfilt;
    if (counted && ++o.done == o.length) return finish(cell, thread, true);
    if (o.control_ends) finish(cell, thread, false);
  }

  bool read(int cell, Operation& o, int j, uint32_t k, int offset, uint32_t* value, Worker* worker) {
    Core& core = cores_[cell];
    const Stream& s = stream(o, j);
    const uint32_t mask = s.width == 2 ? 0xFFFF : ~0u;
    switch (s.kind) {
      case Operand::kNone: return true;
      case Operand::kScalar: *value = uint32_t(s.base) & mask; return true;
      case Operand::kFabric: {
        const int slot = source_slot(core, s);
        *value = at(cell, slot).front() & mask;
        take(core, at(cell, slot), slot);
        return true;
      }
      case Operand::kFifo: *value = pop_fifo(core, s); return true;
      default: break;
    }
    const int where = address(core, s, k, offset);
    uint8_t* const bytes = locate(core, where, s.width, false);
    if (!bytes) return note(cell, o, kOutsideMemory, where, worker), false;
    *value = 0;
    std::memcpy(value, bytes, s.width);
    if (o.dest.kind == Operand::kFabric && program(core).fabrics[o.dest.row].clears >> (j - 1) & 1)
      std::memset(bytes, 0, s.width);
    return true;
  }

  bool write(int cell, Operation& o, uint32_t k, int offset, uint32_t value, Worker* worker) {
    Core& core = cores_[cell];
    const Stream& s = o.dest;
    switch (s.kind) {
      case Operand::kNone: return true;
      case Operand::kFifo: push_fifo(core, s, value); return true;
      case Operand::kFabric: {
        const FabricRow& row = program(core).fabrics[s.row];
        if (s.width == 2) {
          const int index = o.index + (row.indexed >= 0 ? row.indexed + int(k) : 0);
          value = (value & 0xFFFF) | uint32_t(index) << 16;
        }
        const bool advances = row.advances && k + 1 == o.length;
        send(cell, row.queue, row.color >= 0 ? slot_[row.color] : -1, value,
             uint8_t(kValid | (row.control ? kControl : 0) | (advances ? kAdvance : 0)));
        return true;
      }
      default: break;
    }
    const int where = address(core, s, k, offset);
    uint8_t* const bytes = locate(core, where, s.width, true);
    if (!bytes) return note(cell, o, kOutsideMemory, where, worker), false;
    std::memcpy(bytes, &value, s.width);
    return true;
  }

  uint32_t pop_fifo(Core& core, const Stream& s) {
    Fifo& fifo = this->fifo(core, s.row);
    const FifoRow& row = program(core).fifos[s.row];
    uint32_t value = 0;
    for (int half = 0; half < s.width / 2; ++half) {
      uint16_t word;
      std::memcpy(&word, &memory_[core.memory + row.address + 2 * fifo.head], 2);
      value |= uint32_t(word) << 16 * half;
      fifo.head = (fifo.head + 1) % (row.bytes / 2), --fifo.used;
    }
    if (fifo.choked && row.push_task >= 0) core.active |= 1u << row.push_task;
    fifo.choked = false;
    return value;
  }

  void push_fifo(Core& core, const Stream& s, uint32_t value) {
    Fifo& fifo = this->fifo(core, s.row);
    const FifoRow& row = program(core).fifos[s.row];
    for (int half = 0; half < s.width / 2; ++half) {
      const uint16_t word = uint16_t(value >> 16 * half);
      const int place = (fifo.head + fifo.used++) % (row.bytes / 2);
      std::memcpy(&memory_[core.memory + row.address + 2 * place], &word, 2);
    }
    if (fifo.starved && row.pop_task >= 0) core.active |= 1u << row.pop_task;
    fifo.starved = false;
  }

  void apply(Core& core, Effect effect) {
    if (effect.action == int(Action::kActivate)) core.active |= 1u << effect.target;
    if (effect.action >= int(Action::kUnblock))
      unblock(core, effect.action - int(Action::kUnblock), effect.target);
  }

  void finish(int cell, int thread, bool by_length) {
    Core& core = cores_[cell];
    Operation& o = running(cell, thread);
    for (int k = 0; k < 4; ++k) {
      const Stream& s = stream(o, k);
      if (s.dsr < 0 || s.kind != Operand::kMemory) continue;
      Dsr& d = dsr(core, s.dsr >> 8, s.dsr & 0xFF);
      if (program(core).dsr_loads[d.row].saves_address)
        d.value = (d.value & ~0xFFFFull) | uint16_t(field(d.value, 0) + int(o.done) * s.step);
    }
    for (const Effect& effect : o.effects) apply(core, effect);
    core.threads &= ~(1u << thread);
    if (thread != kMainThread) return;
    core.main = Main::kRunning;
    const int result = program(core).code[o.pc].c;
    if (result >= 0) reg(core, result) = by_length;
  }
};

}  // namespace wafer::csl
