// Operations on descriptors: issue, one step, end. Elements go one after another, in order.
#pragma once
#include "elements.h"
#include "queues.h"

namespace wafer::csl {

constexpr uint32_t kEndless = UINT32_MAX;
constexpr uint32_t kUnbound = 1u << 31;  // a slot that never has a word
constexpr int kEndlessExtent = 0x7FFF;  // a fabric descriptor of this length ends by control alone

inline int field(uint64_t descriptor, int k) { return int(descriptor >> 16 * k & 0xFFFF); }

class Operations : public Queues {
 public:
  using Queues::Queues;

 protected:
  Operation& running(int cell, int thread) {
    return operations_[size_t(cell) * threads_ + (thread == kMainThread ? 0 : thread + 1)];
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

  Sent outgoing(const FabricRow& row, uint32_t word, bool advances) const {
    const int flag = kValid | (row.control ? kControl : 0) | (advances ? kAdvance : 0);
    const int8_t slot = row.color >= 0 ? slot_[row.color] : int8_t(-1);
    return {int8_t(row.queue), slot, uint8_t(flag), word};
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
  bool operate(int cell, int64_t cycle, int pc, const Instruction& i, Worker* worker) {
    Core& core = cores_[cell];
    const Program& p = program(core);
    const OperationRow& row = p.operations[i.a];
    Operation o{};
    o.pc = pc, o.control_ends = row.control_ends;
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
    o.op = DsdOp(row.op);
    for (const Stream* s : {&o.src0, &o.src1})
      o.indexed |= s->kind == Operand::kFabric && s->width == 2;
    o.indexed &= o.dest.indexed || o.src0.indexed || o.src1.indexed;
    if (o.dest.kind == Operand::kFabric) o.clears = uint8_t(p.fabrics[o.dest.row].clears);
    o.wide = uint8_t(elements_per_step(core, o));
    o.turns = uint8_t(cycles_per_step(core, o));

    const bool apart = issue.asynchronous && issue.fabric;
    const int thread = !apart ? kMainThread : issue.thread >= 0 ? issue.thread : issue.queue;
    if (thread < 0) return fault(cell, kNoThread, pc, 0, worker), false;
    if (core.threads >> thread & 1) return fault(cell, kThreadInUse, pc, thread, worker), false;
    constexpr uint8_t kRanks[3] = {0, 2, 3};  // the task's own goes between low and medium
    core.rank[thread] = apart ? kRanks[issue.priority < 0 ? 0 : issue.priority] : 1;
    core.main = apart ? Main::kRunning : Main::kOperating;
    running(cell, thread) = o;
    if (recorder_) record(cell, thread, cycle, false);
    const bool alone = !core.threads && !issue.fabric && !issue.fifo;
    core.threads |= uint16_t(1 << thread);
    watch(cell, thread);
    if (apart && i.c >= 0) reg(core, i.c) = 1;
    if (o.length == 0) finish(cell, thread, true);
    if (o.length > 0 && alone) return run_alone(cell, cycle, worker), false;
    return core.main == Main::kRunning;
  }

  // That an operation begins, or ends before a cycle; what runs alone says when it will have ended.
  void record(int cell, int thread, int64_t cycle, bool ends) {
    const Operation& o = running(cell, thread);
    if (ends && thread == kMainThread) cycle = std::max(cycle, wake_[cell]);
    recorder_->event(
        {cycle, cell, o.pc, o.task, o.task_id, o.done, uint8_t(thread), uint8_t(ends)});
  }

  // What the operation of a thread waits for, kept where a step finds it at once.
  void watch(int cell, int thread) {
    Core& core = cores_[cell];
    Operation& o = running(cell, thread);
    uint32_t needs = 0;
    bool fifos = o.dest.kind == Operand::kFifo;
    for (Stream* s : {&o.src0, &o.src1}) {
      fifos |= s->kind == Operand::kFifo;
      if (s->kind != Operand::kFabric) continue;
      const int slot = s->step = source_slot(core, *s);
      needs |= slot < 0 ? kUnbound : 1u << slot;
    }
    core.needs[thread] = needs;
    core.room[thread] = int8_t(
        o.dest.kind == Operand::kFabric ? program(core).fabrics[o.dest.row].queue : -1);
    const uint16_t bit = uint16_t(1 << thread);
    core.with_fifos = fifos ? core.with_fifos | bit : core.with_fifos & uint16_t(~bit);
  }
  // After a queue was bound to another colour.
  void watch_all(int cell) {
    each(cores_[cell].threads, [&](int thread) { watch(cell, thread); });
  }

  // One step of the operation that is first in rank; whether there was one.
  bool step_operations(int cell, Worker* worker) {
    Core& core = cores_[cell];
    int best = -1, rank = -1;
    each(core.threads, [&](int thread) {
      if (core.rank[thread] > rank && ready(cell, thread)) best = thread, rank = core.rank[thread];
    });
    if (best < 0) return false;
    Operation& o = running(cell, best);
    ++worker->profile[core.program][o.pc];
    if (++o.turn < o.turns) return true;
    o.turn = 0;
    execute(cell, best, o.wide, worker);
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
    each(core.threads, [&](int thread) { out |= core.needs[thread]; });
    return out & ~kUnbound;
  }

  // The CE takes the word at the head; its place is free for the ramp from the next cycle on.
  void take(int cell, int slot) {
    ++at(cell, slot).popped, cores_[cell].popped |= 1u << slot;
    pop_word(cell, slot, cores_[cell]);
  }

  Arena<uint8_t> memory_;
  Arena<int64_t> registers_;
  std::vector<Dsr> dsrs_;
  std::vector<Fifo> fifos_;
  Arena<Operation> operations_;  // the task's own, then the microthreads'
  size_t threads_ = 1;                 // of them per PE

 private:
  // What the operands of an operation say together.
  struct Issue {
    bool asynchronous;
    int thread, priority, queue;  // queue: of the destination, else of the first source
    int effects;
    bool fabric = false, fifo = false;
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
      if (value >> 8 > 2 || int(value & 0xFF) >= p.dsrs || loaded.row < 0) {
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
        return field(value, 1);
      case Operand::kShaped: {
        s.base = field(value, 0), s.row = int16_t(field(value, 1));
        const ShapeRow& shape = p.shapes[s.row];
        return shape.n0 * shape.n1 * shape.n2 * shape.n3;
      }
      case Operand::kFabric: return resolve_fabric(cell, value, k, o, issue);
      case Operand::kFifo: {
        s.row = int16_t(value), issue->fifo = true;
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
    if (bool(row.sends) != (k == 0) || (row.sends && row.queue < 0)) issue->problem = kWrongOperand;
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

  static bool in_memory(const Stream& s) {
    return (s.kind == Operand::kMemory || s.kind == Operand::kShaped) && !s.indexed;
  }
  // Between neighbours in the innermost dimension, in elements.
  int stride(const Core& core, const Stream& s) const {
    return s.kind == Operand::kShaped ? program(core).shapes[s.row].s3 : s.step / s.width;
  }

  // More than one if all operands lie in memory, in whole 32-bit words, with strides that allow it.
  int elements_per_step(const Core& core, const Operation& o) const {
    int out = in_memory(o.dest) ? costs_.width[int(o.op)] : 1;
    for (const Stream* s : {&o.dest, &o.src0, &o.src1}) {
      if (s->kind == Operand::kScalar || s->kind == Operand::kNone) continue;
      if (!in_memory(*s) || s->base % 4) return 1;
      const int by = stride(core, *s);
      if (by != 0 && by != 1) out = std::min(out, costs_.stride_width[by & 7]);
    }
    return out;
  }

  // As many as operands go to one bank in every step. Writes come later than reads, so they meet
  // them only where all go to one bank: by a stride of whole lines.
  int cycles_per_step(const Core& core, const Operation& o) const {
    const int line = costs_.banks * costs_.bank_bytes;
    const auto bytes = [&](const Stream& s) { return stride(core, s) * s.width; };
    const auto counts = [&](const Stream& s) {
      return in_memory(s) && (&s != &o.dest || (bytes(s) && bytes(s) % line == 0));
    };
    const auto meet = [&](const Stream& x, const Stream& y) {
      const auto banks = [&](const Stream& s) {
        return (o.wide * s.width + costs_.bank_bytes - 1) / costs_.bank_bytes;
      };
      const int apart = (y.base / costs_.bank_bytes - x.base / costs_.bank_bytes) &
                        (costs_.banks - 1);
      return (bytes(x) - bytes(y)) % line == 0 &&
             (apart < banks(x) || costs_.banks - apart < banks(y));
    };
    int out = 1;
    const Stream* const all[] = {&o.src0, &o.src1, &o.dest};
    for (const Stream* x : all) {
      int meeting = 0;
      for (const Stream* y : all) meeting += counts(*x) && counts(*y) && meet(*x, *y);
      out = std::max(out, meeting);
    }
    return out;
  }

  bool ready(int cell, int thread) {
    Core& core = cores_[cell];
    if (core.needs[thread] & ~core.queued) return false;
    if (core.room[thread] >= 0 && core.full >> core.room[thread] & 1) return false;
    if (thread != kMainThread && is_blocked(core, Gate::kThread, thread)) return false;
    if (!(core.with_fifos >> thread & 1)) return true;
    const Operation& o = running(cell, thread);
    for (const Stream* s : {&o.src0, &o.src1, &o.dest})
      if (s->kind == Operand::kFifo && lacks(core, thread, *s, s != &o.dest)) return false;
    return true;
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
  // 0: an operation that the task waits for ends, others wait; 1: all end; 2: all wait.
  bool ends_short(const Core& core, int thread, const Stream& s, bool reads) const {
    const FifoRow& row = program(core).fifos[s.row];
    const int ends = reads ? row.empty_ends : row.full_ends;
    return ends == 1 || (ends == 0 && thread == kMainThread);
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

  // An operation in memory that nothing on its PE competes with: all its elements at once, for the
  // cycles that they take.
  void run_alone(int cell, int64_t cycle, Worker* worker) {
    Operation& o = running(cell, kMainThread);
    const int64_t cycles = (int64_t(o.length) + o.wide - 1) / o.wide * o.turns;
    wake_[cell] = cycle + cycles;
    worker->profile[cores_[cell].program][o.pc] += cycles;
    if (in_place(cell, o)) return finish(cell, kMainThread, true);
    execute(cell, kMainThread, o.length, worker);
  }

  // An operand in memory as a pointer and a step; a single value has the step 0.
  struct Walk {
    uint8_t* at;
    int64_t step;
    uint8_t width;
    uint32_t load(int64_t k) const {
      uint32_t value = 0;
      std::memcpy(&value, at + k * step, width == 2 ? 2 : 4);
      return value;
    }
  };

  // The whole operation by pointers; false, and nothing done, where an operand is no plain row of
  // the memory.
  bool in_place(int cell, Operation& o) {
    const Core& core = cores_[cell];
    Walk walks[4];
    uint32_t values[4] = {};
    for (int k = 0; k < 4; ++k) {
      const Stream& s = stream(o, k);
      walks[k] = {reinterpret_cast<uint8_t*>(&values[k]), 0, 4};
      if (s.kind == Operand::kScalar) values[k] = uint32_t(s.base) & (s.width == 2 ? 0xFFFF : ~0u);
      if (s.kind == Operand::kScalar || s.kind == Operand::kNone) continue;
      if ((s.kind != Operand::kMemory && s.kind != Operand::kPointer) || s.indexed) return false;
      const int64_t last = s.base + int64_t(o.length - 1) * s.step;
      if (std::min<int64_t>(s.base, last) < 0 ||
          !locate(core, std::max<int64_t>(s.base, last), s.width, k == 0))
        return false;
      walks[k] = {&memory_[core.memory + size_t(s.base)], s.step, s.width};
    }
    for (int64_t k = 0; k < int64_t(o.length); ++k) {
      const uint32_t value =
          element(o.op, walks[1].load(k), walks[2].load(k), walks[3].load(k), &o.carry);
      std::memcpy(walks[0].at + k * walks[0].step, &value, walks[0].width == 2 ? 2 : 4);
    }
    o.done = o.length;
    return true;
  }

  // Up to `most` elements.
  void execute(int cell, int thread, uint32_t most, Worker* worker) {
    Core& core = cores_[cell];
    Operation& o = running(cell, thread);
    if (core.with_fifos >> thread & 1)
      for (const Stream* s : {&o.src0, &o.src1, &o.dest})
        if (s->kind == Operand::kFifo && short_of(core, *s, s != &o.dest))
          return finish(cell, thread, false);
    int offset = 0;  // in bytes, from a wavelet's index
    for (uint32_t slots = core.needs[thread]; slots; slots &= slots - 1) {
      const int slot = __builtin_ctz(slots);
      if (at(cell, slot).front_is_control()) return take_control(cell, thread, slot);
      if (o.op == DsdOp::kDfilt) return take(cell, slot);
      if (o.indexed) offset = 2 * int(front(cell, slot) >> 16);
    }
    const uint32_t end = std::min<uint64_t>(o.length, uint64_t(o.done) + most);
    for (uint32_t k = o.done; k < end; ++k) {
      uint32_t values[3] = {};
      for (int j = 1; j < 4; ++j)
        if (!read(cell, o, j, k, offset, &values[j - 1], worker)) return;
      const uint32_t value = element(o.op, values[0], values[1], values[2], &o.carry);
      if (!write(cell, o, k, offset, value, worker)) return;
    }
    if (o.length != kEndless) o.done = end; else ++o.done;
    if (o.done == o.length) finish(cell, thread, true);
  }

  // A control wavelet at the head of a queue that an operation reads.
  void take_control(int cell, int thread, int slot) {
    Core& core = cores_[cell];
    Operation& o = running(cell, thread);
    take(cell, slot);
    apply(core, o.on_control);
    if (o.op == DsdOp::kDfilt && ++o.done == o.length) return finish(cell, thread, true);
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
        *value = front(cell, s.step) & mask;
        take(cell, s.step);
        return true;
      }
      case Operand::kFifo: *value = pop_fifo(core, s); return true;
      default: break;
    }
    const int where = address(core, s, k, offset);
    uint8_t* const bytes = locate(core, where, s.width, false);
    if (!bytes) return note(cell, o, kOutsideMemory, where, worker), false;
    *value = s.width == 2 ? word_at<uint16_t>(bytes) : word_at<uint32_t>(bytes);
    if (o.clears >> (j - 1) & 1) std::memset(bytes, 0, s.width);
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
        send(cell, outgoing(row, value, advances), worker);
        return true;
      }
      default: break;
    }
    const int where = address(core, s, k, offset);
    uint8_t* const bytes = locate(core, where, s.width, true);
    if (!bytes) return note(cell, o, kOutsideMemory, where, worker), false;
    if (s.width == 2) std::memcpy(bytes, &value, 2);
    else std::memcpy(bytes, &value, 4);
    return true;
  }

  template <class Word>
  static Word word_at(const uint8_t* bytes) {
    Word out;
    std::memcpy(&out, bytes, sizeof out);
    return out;
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
    if (recorder_) record(cell, thread, recorder_->cycle() + (o.length > 0), true);
    for (const Effect& effect : o.effects) apply(core, effect);
    core.threads &= uint16_t(~(1 << thread));
    if (thread != kMainThread) return;
    core.main = Main::kRunning;
    const int result = program(core).code[o.pc].c;
    if (result >= 0) reg(core, result) = by_length;
  }
};

}  // namespace wafer::csl
