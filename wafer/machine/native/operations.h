// Operations on descriptors: issue, one step, end. Elements go one after another, in order.
#pragma once
#include "operands.h"

namespace wafer::csl {
namespace {

inline Operation& running(const Core& core, int thread) {
  return core.operations[thread == kMainThread ? 0 : thread + 1];
}

inline void fault(const Core& core, int kind, int pc, int64_t detail, Worker* worker) {
  worker->note({kind, core.cell, int32_t(core.task), core.task_id, pc, detail});
}

inline void note(const Core& core, const Operation& o, int kind, int64_t detail, Worker* worker) {
  worker->note({kind, core.cell, o.task, o.task_id, o.pc, detail});
}

inline bool is_blocked(const Core& core, Gate gate, int id) {
  return core.blocked[int(gate)] >> id & 1;
}

inline void apply(Core& core, Effect effect) {
  const uint32_t bit = 1u << (effect.target & 31);  // -1 without an action
  if (effect.action == int(Action::kActivate)) core.active |= bit;
  if (effect.action >= int(Action::kUnblock)) core.blocked[effect.action - int(Action::kUnblock)] &= ~bit;
}

// What an operation has done so far.
inline void add(const Operation& o, Work* work) {
  const auto words = [&](const Stream& s) {
    const bool held = s.kind == Operand::kMemory || s.kind == Operand::kShaped ||
                      s.kind == Operand::kPointer || s.kind == Operand::kFifo;
    return held ? int64_t(s.width / 2) * o.done : 0;
  };
  ++work->operations;
  if (o.op == DsdOp::kDfilt) return;  // it takes words and computes nothing
  work->elements += o.done;
  work->reads += words(o.src0) + words(o.src1) + words(o.scalar);
  const int64_t cleared = (o.clears & 1 ? words(o.src0) : 0) + (o.clears & 2 ? words(o.src1) : 0);
  work->writes += words(o.dest) + cleared;
}

// That an operation begins, or ends before a cycle; what runs alone says when it will have ended.
inline void record_operation(Wafer& w, const Core& core, int thread, int64_t cycle, bool ends) {
  const Operation& o = running(core, thread);
  if (!ends) return w.recorder->begin({cycle, 0, core.cell, thread, o.pc, o.task, o.task_id, 0});
  if (thread == kMainThread) cycle = std::max(cycle, w.wake[core.cell]);
  w.recorder->end(core.cell, thread, cycle, o.done);
}

// What the operation of a thread waits for, kept where a step finds it at once.
inline void watch(Wafer& w, Core& core, int thread) {
  Operation& o = running(core, thread);
  uint32_t needs = 0;
  bool fifos = o.dest.kind == Operand::kFifo;
  for (Stream* s : {&o.src0, &o.src1}) {
    fifos |= s->kind == Operand::kFifo;
    if (s->kind != Operand::kFabric) continue;
    const int slot = s->step = source_slot(w, core, *s);
    needs |= slot < 0 ? kUnbound : 1u << slot;
  }
  core.waits[thread].needs = needs;
  core.waits[thread].fills = o.dest.kind == Operand::kFabric
      ? uint8_t(1 << program(core).fabrics[o.dest.row].queue) : uint8_t(0);
  const uint16_t bit = uint16_t(1 << thread);
  core.with_fifos = fifos ? core.with_fifos | bit : core.with_fifos & uint16_t(~bit);
}

// After a queue was bound to another color.
inline void watch_all(Wafer& w, Core& core) {
  each(core.threads, [&](int thread) { watch(w, core, thread); });
}

// Slots that operations read.
inline uint32_t being_read(const Core& core) {
  uint32_t out = 0;
  each(core.threads, [&](int thread) { out |= core.waits[thread].needs; });
  return out & ~kUnbound;
}

// The CE takes the word at the head; its place is free for the ramp from the next cycle on.
inline void take(Core& core, int slot) {
  core.lanes[slot].popped += 1, core.popped |= 1u << slot;
  pop_word(core, slot);
}

// Whether an operand takes control wavelets as words, marked as such.
inline bool transforms(const Core& core, const Stream& s) {
  return s.kind == Operand::kFabric && program(core).fabrics[s.row].transform > 0;
}

// The word of a color that an operation reads.
inline uint32_t taken(Core& core, const Stream& s) {
  const uint32_t word = core.lanes[s.step].front();
  take(core, s.step);
  return word & mask(s);
}

inline void send_element(Wafer& w, Core& core, const Operation& o, uint32_t k, uint32_t value,
                         Worker* worker) {
  const FabricRow& row = program(core).fabrics[o.dest.row];
  if (o.dest.width == 2) {
    const int index = o.index + (row.indexed >= 0 ? row.indexed + int(k) : 0);
    value = (value & 0xFFFF) | uint32_t(index) << 16;
  }
  const int header = o.dest.base | (k + 1 == o.length && row.advances ? kAdvance : 0);
  send(w, core, o.plain ? Wavelet(value, header) : outgoing(core, row, value, header), worker);
}

inline bool read(Core& core, Operation& o, int j, uint32_t k, int offset, uint32_t* value,
          Worker* worker) {
  const Stream& s = stream(o, j);
  switch (s.kind) {
    case Operand::kNone: return true;
    case Operand::kScalar: *value = uint32_t(s.base); return true;
    case Operand::kFabric: {
      const uint32_t relayed = core.lanes[s.step].front_is_control() ? kRelayed : 0;
      *value = taken(core, s);
      if (transforms(core, s)) *value = ((*value & ~kRelayed) | relayed) & mask(s);
      return true;
    }
    case Operand::kFifo: *value = pop_fifo(core, s); return true;
    default: break;
  }
  const int where = address(core, s, k, offset);
  uint8_t* const bytes = locate(core, where, s.width, false);
  if (!bytes) return note(core, o, kOutsideMemory, where, worker), false;
  *value = get(bytes, s.width);
  if (o.clears >> (j - 1) & 1) std::memset(bytes, 0, s.width);
  return true;
}

inline bool write(Wafer& w, Core& core, Operation& o, uint32_t k, int offset, uint32_t value,
                  Worker* worker) {
  const Stream& s = o.dest;
  switch (s.kind) {
    case Operand::kNone: return true;
    case Operand::kFifo: push_fifo(core, s, value); return true;
    case Operand::kFabric: send_element(w, core, o, k, value, worker); return true;
    default: break;
  }
  const int where = address(core, s, k, offset);
  uint8_t* const bytes = locate(core, where, s.width, true);
  if (!bytes) return note(core, o, kOutsideMemory, where, worker), false;
  put(bytes, s.width, value);
  return true;
}

inline void finish(Wafer& w, Core& core, int thread, bool by_length, Worker* worker) {
  Operation& o = running(core, thread);
  add(o, &worker->work[core.program][o.pc]);
  for (int k = 0; k < 4; ++k) {
    const Stream& s = stream(o, k);
    if (s.dsr < 0 || s.kind != Operand::kMemory) continue;
    Dsr& d = dsr(core, s.dsr >> 8, s.dsr & 0xFF);
    if (program(core).dsr_loads[d.row].saves_address)
      d.value = (d.value & ~0xFFFFull) | uint16_t(field(d.value, 0) + int(o.done) * s.step);
  }
  if (w.recorder) record_operation(w, core, thread, w.recorder->cycle() + (o.length > 0), true);
  for (const Effect& effect : o.effects) apply(core, effect);
  core.threads &= uint16_t(~(1 << thread));
  if (!core.threads) core.shared_begin = kAddresses, core.shared_end = 0;
  if (thread != kMainThread) return;
  core.main = Main::kRunning;
  const int result = program(core).code[o.pc].c;
  if (result >= 0) reg(core, result) = by_length;
}

// Whether the head of a queue that an operation reads is a control wavelet, not one that is a word for it.
inline bool hears_control(const Core& core, const Operation& o, int slot) {
  const auto relays = [&](const Stream& s) { return transforms(core, s) && s.step == slot; };
  return core.lanes[slot].front_is_control() && !relays(o.src0) && !relays(o.src1);
}

// Whether a control wavelet at the head of a queue ends the operation that reads it: it stays there.
inline bool ended_by_control(Wafer& w, Core& core, int thread, Operation& o, Worker* worker) {
  if (!o.control_ends) return false;
  uint32_t slots = core.waits[thread].needs;
  while (slots && !hears_control(core, o, __builtin_ctz(slots))) slots &= slots - 1;
  if (!slots) return false;
  apply(core, o.on_control);
  finish(w, core, thread, false, worker);
  return true;
}

// Up to `most` elements.
inline void execute(Wafer& w, Core& core, int thread, Operation& o, uint32_t most, Worker* worker) {
  if (core.with_fifos >> thread & 1)
    for (const Stream* s : {&o.src0, &o.src1, &o.dest})
      if (s->kind == Operand::kFifo && short_of(core, *s, s != &o.dest))
        return finish(w, core, thread, false, worker);
  if (ended_by_control(w, core, thread, o, worker)) return;
  int offset = 0;  // in bytes, from a wavelet's index
  for (uint32_t slots = core.waits[thread].needs; slots; slots &= slots - 1) {
    const int slot = __builtin_ctz(slots);
    if (o.op == DsdOp::kDfilt) {  // counts control wavelets
      o.done += hears_control(core, o, slot);
      take(core, slot);
      if (o.done == o.length) finish(w, core, thread, true, worker);
      return;
    }
    if (o.indexed) offset = 2 * int(core.lanes[slot].front() >> 16);
  }
  const uint32_t end = std::min<uint64_t>(o.length, uint64_t(o.done) + most);
  for (uint32_t k = o.done; k < end; ++k) {
    uint32_t values[3] = {};
    for (int j = 1; j < 4; ++j)
      if (!read(core, o, j, k, offset, &values[j - 1], worker)) return;
    const uint32_t value =
        element(o.op, values[0], values[1], values[2], &o.carry, w.costs.half);
    if (const Op step = single_step(o.op); core.exceptions != 0xFFFF && step != Op::kCopy) {
      const Type type = o.dest.width == 2 ? Type::kF16 : Type::kF32;
      const int bits = raised(step, type, values[0], values[1], value, w.costs.half);
      if (bits & ~core.exceptions)
        return note(core, o, kException, bits & ~core.exceptions, worker);
    }
    if (!write(w, core, o, k, offset, value, worker)) return;
  }
  if (o.length != kEndless) o.done = end; else ++o.done;
  if (o.done == o.length) finish(w, core, thread, true, worker);
}

// One element of a plain operation.
inline void step_plain(Wafer& w, Core& core, int thread, Operation& o, Worker* worker) {
  if (ended_by_control(w, core, thread, o, worker)) return;
  const auto source = [&](const Stream& s) {
    if (s.kind == Operand::kMemory || s.kind == Operand::kPointer)
      return get(core.memory + s.base + int64_t(o.done) * s.step, s.width);
    return s.kind == Operand::kFabric ? taken(core, s) : uint32_t(s.base);
  };
  const uint32_t a = source(o.src0), b = o.moves ? 0 : source(o.src1);
  const uint32_t value =
      o.moves ? a : element(o.op, a, b, source(o.scalar), &o.carry, w.costs.half);
  if (o.dest.kind == Operand::kFabric)
    send_element(w, core, o, o.done, value, worker);
  else if (o.dest.kind != Operand::kNone)
    put(core.memory + o.dest.base + int64_t(o.done) * o.dest.step, o.dest.width, value);
  if (++o.done == o.length) finish(w, core, thread, true, worker);
}

// Up to `most` elements of a plain operation in memory; a single value is a row with the step 0.
// `element` is inlined: a call takes a quarter longer.
[[gnu::noinline, gnu::flatten]] inline void walk(Wafer& w, Core& core, int thread, Operation& o,
                                                 uint32_t most, Worker* worker) {
  struct Row {
    uint8_t* at;
    int64_t step;
    uint8_t width;
    uint32_t load(int64_t k) const { return get(at + k * step, width); }
  } rows[4];
  uint32_t values[4];
  for (int k = 0; k < 4; ++k) {
    const Stream& s = stream(o, k);
    values[k] = uint32_t(s.base);
    if (s.kind == Operand::kMemory || s.kind == Operand::kPointer)
      rows[k] = {core.memory + s.base, s.step, s.width};
    else
      rows[k] = {reinterpret_cast<uint8_t*>(&values[k]), 0, 4};
  }
  const int64_t end = std::min<int64_t>(o.length, int64_t(o.done) + most);
  const int half = w.costs.half;
  const DsdOp op = o.op;
  uint32_t carry = o.carry;
  for (int64_t k = o.done; k < end; ++k) {
    const uint32_t value = element(op, rows[1].load(k), rows[2].load(k), rows[3].load(k), &carry, half);
    put(rows[0].at + k * rows[0].step, rows[0].width, value);
  }
  o.done = uint32_t(end), o.carry = carry;
  if (o.done == o.length) finish(w, core, thread, true, worker);
}

// 0: an operation that the task waits for ends, others wait; 1: all end; 2: all wait.
inline bool ends_short(const Core& core, int thread, const Stream& s, bool reads) {
  const FifoRow& row = program(core).fifos[s.row];
  const int ends = reads ? row.empty_ends : row.full_ends;
  return ends == 1 || (ends == 0 && thread == kMainThread);
}

inline bool lacks(Core& core, int thread, const Stream& s, bool reads) {
  if (!short_of(core, s, reads)) return false;
  (reads ? core.fifos[s.row].starved : core.fifos[s.row].choked) = true;
  return !ends_short(core, thread, s, reads);
}

// Whether the operation of a thread has to wait for a FIFO.
inline bool lacks_fifo(Core& core, int thread) {
  const Operation& o = running(core, thread);
  for (const Stream* s : {&o.src0, &o.src1, &o.dest})
    if (s->kind == Operand::kFifo && lacks(core, thread, *s, s != &o.dest)) return true;
  return false;
}

// Levels of priority in order: a microthread's low, medium and high, the task's medium low to high.
constexpr uint8_t kRanks[7] = {0, 4, 8, 2, 5, 6, 9};

// One step of the operation that is first in rank; whether there was one. Instructions of the task
// that need this cycle take part, and are a cycle later if a microthread goes first.
[[gnu::always_inline]] inline bool step_operations(Wafer& w, Core& core, Worker* worker) {
  int best = -1, rank = core.busy ? kRanks[program(core).level] : -1;
  const uint32_t queued = core.queued;
  const int full = core.full;
  each(core.threads & ~(core.blocked[int(Gate::kThread)] & kMicrothreads), [&](int thread) {
    const Wait& wait = core.waits[thread];
    if ((wait.needs & ~queued) | uint32_t(wait.fills & full) || wait.rank <= rank) return;
    if (core.with_fifos >> thread & 1 && lacks_fifo(core, thread)) return;
    best = thread, rank = wait.rank;
  });
  if (best < 0) return false;
  Operation& o = running(core, best);
  ++worker->work[core.program][o.pc].cycles;
  ++core.worked, core.ended = core.busy ? ++w.wake[core.cell] : w.cycle + 1;
  o.turn = int16_t(o.turn + kPace);
  if (o.turn < o.turns) return true;
  o.turn = int16_t(o.turn - o.turns);
  const uint32_t most = std::min<uint32_t>(o.wide, o.row - o.done % o.row);
  if (!o.plain) execute(w, core, best, o, most, worker);
  else if (o.wide == 1) step_plain(w, core, best, o, worker);
  else walk(w, core, best, o, o.wide, worker);
  return true;
}

// An operation in memory that nothing on its PE competes with: all its elements at once, for the
// cycles that they take.
inline void run_alone(Wafer& w, Core& core, int64_t cycle, Worker* worker) {
  Operation& o = running(core, kMainThread);
  const auto steps = [&](uint32_t count) { return (int64_t(count) + o.wide - 1) / o.wide; };
  const int64_t turns = (o.length / o.row * steps(o.row) + steps(o.length % o.row)) * o.turns;
  const int64_t cycles = (turns + kPace - 1) / kPace;
  w.wake[core.cell] = cycle + cycles;
  worker->work[core.program][o.pc].cycles += cycles;
  core.worked += cycles, core.ended = cycle + cycles;
  core.busy = true;  // none of its steps follows in this cycle, after a fault either
  if (o.plain) walk(w, core, kMainThread, o, o.length, worker);
  else execute(w, core, kMainThread, o, o.length, worker);
}

// The bytes [first, second) that an operand in memory lies within; an address wraps at 16 bits.
inline std::pair<int64_t, int64_t> extent(const Core& core, const Stream& s, int64_t length) {
  int64_t below = 0, above = 0;
  const auto add = [&](int64_t far) { (far < 0 ? below : above) += far; };
  if (s.kind == Operand::kFifo) {
    const FifoRow& row = program(core).fifos[s.row];
    return {row.address, row.address + row.bytes};
  }
  if (s.kind == Operand::kMemory) add(int64_t(s.step) * (length - 1));
  if (s.kind == Operand::kShaped) {
    const ShapeRow& row = program(core).shapes[s.row];
    add(int64_t(row.n0 - 1) * row.s0 * s.width), add(int64_t(row.n1 - 1) * row.s1 * s.width);
    add(int64_t(row.n2 - 1) * row.s2 * s.width), add(int64_t(row.n3 - 1) * row.s3 * s.width);
  }
  return {s.base + below, s.base + above + s.width};
}

// Notes the bytes that a microthread's operation reads and writes, besides those of others.
inline void share(Core& core, const Operation& o) {
  for (const Stream* s : {&o.dest, &o.src0, &o.src1, &o.scalar}) {
    if (s->kind != Operand::kMemory && s->kind != Operand::kShaped && s->kind != Operand::kPointer &&
        s->kind != Operand::kFifo) continue;
    auto [first, end] = extent(core, *s, o.length);
    if (s->indexed || first < 0 || end > kAddresses) first = 0, end = kAddresses;
    core.shared_begin = std::min(core.shared_begin, int32_t(first));
    core.shared_end = std::max(core.shared_end, int32_t(end));
  }
}

// Whether an operand of an operation begins in a variable and goes beyond it, which is a fault.
[[gnu::noinline, gnu::cold]] inline bool overruns(const Core& core, Operation& o,
                                                  Worker* worker) {
  if (!o.length || o.length >= uint32_t(kEndlessExtent)) return false;
  for (int k = 0; k < 4; ++k) {
    const Stream& s = stream(o, k);
    if (s.kind != Operand::kMemory) continue;
    const auto [first, end] = extent(core, s, o.length);
    for (const Span& span : program(core).variables) {
      if (s.base < span.begin || s.base >= span.end) continue;
      if (first >= span.begin && end <= span.end) break;
      const int64_t other = first < s.base ? first : end - 1;
      const int kind = k == 0 ? kOverrun : kOverread;
      return note(core, o, kind, int64_t(s.base) << 32 | (other & 0xFFFFFFFF), worker), true;
    }
  }
  return false;
}

// Row a of the operations, begun by the task's thread at pc. Whether the thread goes on at once.
inline bool operate(Wafer& w, Core& core, int64_t cycle, int pc, const Instruction& i,
                    Worker* worker) {
  const Program& p = program(core);
  const OperationRow& row = p.operations[i.a];
  Operation o{};
  o.pc = pc, o.control_ends = row.control_ends;
  o.task = int32_t(core.task), o.task_id = core.task_id;
  o.effects[0] = {int8_t(row.action), int8_t(row.target)};
  o.on_control = {int8_t(row.control_action), int8_t(row.control_target)};
  const int32_t kinds[4] = {row.dest, row.src0, row.src1, row.scalar};
  Issue issue{row.asynchronous != 0, row.thread, row.priority, -1, 1};
  int from = i.b, lengths[4] = {-1, -1, -1, -1};
  for (int k = 0; k < 4; ++k) {
    Stream& s = stream(o, k);
    s.width = uint8_t(row.bytes[k]);
    if (Operand(kinds[k]) == Operand::kNone) continue;
    lengths[k] = resolve(w, core, Operand(kinds[k]), reg(core, from++), k, &o, &issue);
    if (issue.problem) return fault(core, issue.problem, pc, issue.detail, worker), false;
  }
  // The end of a descriptor in a DSR does what its load said.
  if (issue.held && !issue.named) o.effects[0] = {};
  if (row.index >= 0) o.index = uint16_t(reg(core, from));
  for (int k = 0; k < 4 && row.index >= 0; ++k)
    if (stream(o, k).indexed) stream(o, k).base += 2 * o.index, stream(o, k).indexed = false;
  if (o.src0.kind == Operand::kFifo && o.src1.kind == Operand::kFifo && o.src0.row == o.src1.row)
    return fault(core, kWrongOperand, pc, 0, worker), false;
  o.length = length(o, lengths);
  for (int k = 0; k < 4; ++k)
    if (stream(o, k).kind == Operand::kShaped && !lengths[k] && o.length)
      return fault(core, kNoElements, pc, 0, worker), false;
  if (!p.variables.empty() && overruns(core, o, worker)) return false;
  o.op = DsdOp(row.op);
  for (const Stream* s : {&o.src0, &o.src1})
    o.indexed |= s->kind == Operand::kFabric && s->width == 2;
  o.indexed &= o.dest.indexed || o.src0.indexed || o.src1.indexed;
  if (o.dest.kind == Operand::kFabric) {
    const FabricRow& fabric = p.fabrics[o.dest.row];
    o.clears = uint8_t(fabric.clears), o.dest.base = header(w, fabric);
  }
  o.wide = uint8_t(elements_per_step(w, core, o));
  o.turns = uint16_t(cycles_per_step(w, core, o) * pace(w, o, issue.fabric));
  o.row = row_of(core, o);
  o.plain = is_plain(core, o), o.moves = moves(o.op);

  const bool apart = issue.asynchronous && issue.fabric;
  if (issue.fabric && !apart) o.turn = int16_t(-kPace * w.costs.fabric_start);
  const int thread = !apart ? kMainThread : issue.thread >= 0 ? issue.thread : issue.queue;
  if (thread < 0) return fault(core, kNoThread, pc, 0, worker), false;
  if (core.threads >> thread & 1) {  // it is issued, and paid for, once that one has ended
    core.main = Main::kWaiting, core.awaited = int8_t(thread), core.pc = pc, core.paid = true;
    return false;
  }
  constexpr int kMedium = 1;  // of a microthread that names none
  const int level = apart ? issue.priority : p.level;
  core.waits[thread].rank = kRanks[level < 0 ? kMedium : level];
  core.main = apart ? Main::kRunning : Main::kOperating;
  running(core, thread) = o;
  if (w.recorder) record_operation(w, core, thread, cycle, false);
  const bool alone = !core.threads && !issue.fabric && !issue.fifo;
  if (apart) share(core, o);
  core.threads |= uint16_t(1 << thread);
  watch(w, core, thread);
  if (apart && i.c >= 0) reg(core, i.c) = 1;
  if (o.length == 0) finish(w, core, thread, true, worker);
  if (o.length > 0 && alone) return run_alone(w, core, cycle, worker), false;
  return core.main == Main::kRunning;
}

}  // namespace
}  // namespace wafer::csl
