// What instructions do.
#pragma once
#include "operations.h"

namespace wafer::csl {
namespace {

inline void record_task(Wafer& w, const Core& core, int64_t cycle, bool ends) {
  if (ends) return w.recorder->end(core.cell, kTaskLane, cycle, 0);
  w.recorder->begin({cycle, 0, core.cell, kTaskLane, core.pc, int32_t(core.task), core.task_id, 0});
}

// Whether a microthread (-1: none) runs an operation.
inline bool runs(const Core& core, int thread) { return thread >= 0 && core.threads >> thread & 1; }

inline void stop_task(Core& core) { core.main = Main::kIdle; }  // after a fault

// A byte address of 16 bits; wraps.
inline int place(int64_t base, int64_t offset) {
  return int((uint64_t(base) + uint64_t(offset)) & 0xFFFF);
}

inline bool in_registers(int64_t address) { return address >= 0xFE40 && address < 0xFEE8; }

// Whether some bytes may be among those that microthreads read and write.
inline bool is_shared(const Core& core, int address, int bytes) {
  return address < core.shared_end && address + bytes > core.shared_begin;
}

inline size_t frame_of(const Wafer& w, const Core& core, int depth) {
  return size_t(depth) * size_t(w.cells()) + size_t(core.cell);
}

inline int64_t stamp(const Core& core, int64_t cycle) {
  return core.stamp + (core.stamp_from < 0 ? 0 : cycle - core.stamp_from);
}

inline void timer(Core& core, int64_t cycle, int64_t what) {
  core.stamp = what == 2 ? 0 : stamp(core, cycle);
  core.stamp_from = what == 1 || (what == 2 && core.stamp_from >= 0) ? cycle : -1;
}

// The counter's words, the lowest first, and behind them whether it runs.
constexpr int kTime = 0x7F70, kTimer = 3;

inline int64_t get_time(const Core& core, int64_t cycle, int word) {
  if (word == kTimer) return core.stamp_from >= 0;
  return stamp(core, cycle) >> 16 * word & 0xFFFF;
}

inline void set_time(Core& core, int64_t cycle, int word, int64_t value) {
  if (word == kTimer) return timer(core, cycle, value != 0);
  const int64_t now = stamp(core, cycle);
  core.stamp = (now & ~(int64_t(0xFFFF) << 16 * word)) | (value & 0xFFFF) << 16 * word;
  if (core.stamp_from >= 0) core.stamp_from = cycle;
}

// x^23 + x^18 + 1, 128 steps a call, 16 at a time.
inline int64_t random16(Core& core) {
  uint32_t& random = core.random[core.generator % kGenerators];
  for (int k = 0; k < 8; ++k) random = random << 16 | ((random >> 7 ^ random >> 2) & 0xFFFF);
  return random & 0xFFFF;
}

inline void print(Wafer& w, int cell, int64_t cycle, Type type, int64_t value, Worker* worker) {
  std::string& line = host(w, cell).line;
  if (type == Type::kBool && value == '\n') {
    worker->prints.push_back({cycle, cell, line});
    line.clear();
  } else if (type == Type::kBool) {
    line += char(value);
  } else if (is_float(type)) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", double(float_in(type, value, w.costs.half)));
    line += text;
    if (!std::strpbrk(text, ".en")) line += ".0";  // not of 1e+20, inf and nan
  } else {
    line += is_signed(type) ? std::to_string(value) : std::to_string(uint64_t(value));
  }
}

inline bool configure(Wafer& w, Core& core, int64_t cycle, const Instruction& i, Worker* worker) {
  const bool by_pointer = i.op == Op::kLoad || i.op == Op::kStore;
  const bool sets = i.op == Op::kStore || i.op == Op::kConfigSet;
  const int64_t at = reg(core, sets ? i.a : i.b);
  const int address = by_pointer ? place(at, i.c) / 2 : int(at);
  const int word = address - kTime;
  if (word >= 0 && word <= kTimer) {
    if (sets) set_time(core, cycle, word, reg(core, i.b));
    else reg(core, i.a) = get_time(core, cycle, word);
    return true;
  }
  if (!use_register(w, core, address, sets, &reg(core, sets ? i.b : i.a)))
    return fault(core, kNoConfig, core.pc, address, worker), false;
  if (!sets) return true;
  worker->swaps |= (reg(core, i.b) & (kSwapX | kSwapY | kSteered)) != 0;
  watch_all(w, core), changed(w, core.cell, true);
  return true;
}

// The color behind a fabric descriptor, by the rules of operands.
inline bool receive_one(Wafer& w, Core& core, const Instruction& i, Worker* worker) {
  if (!fits(program(core), Operand::kFabric, uint64_t(reg(core, i.b)), 1))
    return fault(core, kWrongOperand, core.pc, 0, worker), false;
  Stream s;
  s.row = int16_t(field(uint64_t(reg(core, i.b)), 0));
  const int slot = source_slot(w, core, s);
  if (slot < 0) return fault(core, kNoColor, core.pc, 0, worker), false;
  Lane& lane = core.lanes[slot];
  if (!lane.size) return false;
  reg(core, i.a) = wrapped(Type(i.type), lane.front());
  take(core, slot);
  return true;
}

inline bool send_one(Wafer& w, Core& core, const Instruction& i, Worker* worker) {
  const uint64_t descriptor = uint64_t(reg(core, i.a));
  const bool known = fits(program(core), Operand::kFabric, descriptor, 0);
  const FabricRow unknown{0, -1};
  const FabricRow& row = known ? program(core).fabrics[field(descriptor, 0)] : unknown;
  if (!row.sends || row.queue < 0) return fault(core, kWrongOperand, core.pc, 0, worker), false;
  if (core.full >> row.queue & 1) return false;
  const int64_t mask = bytes_of(Type(i.type)) < 4 ? 0xFFFF : 0xFFFFFFFF;
  const int flags = header(w, row) | (row.advances ? kAdvance : 0);
  send(w, core, outgoing(core, row, uint32_t(reg(core, i.b) & mask), flags), worker);
  return true;
}

inline void intrinsic(Wafer& w, Core& core, int64_t cycle, const Instruction& i, Worker* worker) {
  const int64_t value = i.b >= 0 ? reg(core, i.b) : 0;
  int64_t unused;
  int64_t& out = i.a >= 0 ? reg(core, i.a) : unused;
  switch (Intrinsic(i.type)) {
    case Intrinsic::kRandom16: out = random16(core); break;
    case Intrinsic::kSeed: core.random[core.generator % kGenerators] = uint32_t(value); break;
    case Intrinsic::kTimer: timer(core, cycle, value); break;
    case Intrinsic::kTimestamp: out = stamp(core, cycle) & 0xFFFFFFFFFFFF; break;
    case Intrinsic::kCoordinate: out = value ? core.cell / w.width : core.cell % w.width; break;
    case Intrinsic::kNextCommand:
      if (core.commanded) core.commanded = false, ++worker->answered;
      break;
    case Intrinsic::kPrint: print(w, core.cell, cycle, Type(i.c), value, worker); break;
    case Intrinsic::kFifoLength: {
      if (uint64_t(value) >> 1 >= program(core).fifos.size())
        return fault(core, kWrongOperand, core.pc, 0, worker);
      Fifo& fifo = core.fifos[value >> 1];
      (value & 1 ? fifo.write_length : fifo.read_length) = int32_t(reg(core, i.c));
      break;
    }
    case Intrinsic::kQueueFlush: core.flushing |= 1 << (value & 7), flush(core); break;
    case Intrinsic::kTeardownExit:
      if (uint64_t(value) >= kColors || w.slot[value] < 0)
        return fault(core, kNoConfig, core.pc, 0x7F20 + value, worker);
      leave_teardown(w, core, int(value)), changed(w, core.cell, true);
      break;
    default: {
      const Type type = Type(i.c);
      const float x = float_in(type, value, w.costs.half);
      out = float_out(type, function(Intrinsic(i.type), x), w.costs.half);
    }
  }
}

// A task that runs ahead of the clock: what changes with each instruction, kept in registers.
struct Ahead {
  int pc;
  int64_t* registers;  // of its function
  int64_t debt;        // cycles charged and not yet waited out
};

// What a jump with a condition costs more if it is taken; a loop's last round costs less.
inline void jump(const Instruction& i, Ahead* task, Work* work) {
  const int64_t cycles = std::max<int64_t>(i.type, -task->debt);
  task->debt += cycles, work->cycles += cycles;
}

// Where nothing is owed, the charge of a jump may have been cut: no path has that, and one begins.
inline void record_branch(Wafer& w, const Core& core, const Instruction& i, int64_t cycle, int64_t debt,
                          OpenState* open, bool taken, int next) {
  if (taken && i.type < 0 && !debt) w.recorder->state(core.cell, cycle, kComputes, next, 1);
  else w.recorder->jump(open, cycle + debt, taken, next);
}

enum class Outcome { kDone, kInTime, kFault };

// An instruction that only this task sees. Any other, and one whose order among microthreads' steps
// matters while cycles are owed, has to be done in time. open: the path that is recorded, or none.
[[gnu::always_inline]] inline Outcome compute(Wafer& w, Core& core, const Instruction& i, int64_t cycle,
                                              Ahead* task, OpenState* open, Work* work, Worker* worker) {
  const Type type = Type(i.type);
  const auto r = [&](int k) -> int64_t& { return task->registers[k]; };
  const auto failed = [&](int kind, int64_t detail) {
    return fault(core, kind, task->pc, detail, worker), Outcome::kFault;
  };
  int next = task->pc + 1;
  switch (i.op) {
    case Op::kConst: r(i.a) = int64_t(uint64_t(uint32_t(i.c)) << 32 | uint32_t(i.b)); break;
    case Op::kCopy: r(i.a) = r(i.b); break;
    case Op::kDiv: case Op::kRem:
      if (r(i.c) == 0 && !is_float(type)) return failed(kDivision, 0);
      [[fallthrough]];
    case Op::kAdd: case Op::kSub: case Op::kMul: case Op::kAnd: case Op::kOr: case Op::kXor:
    case Op::kShl: case Op::kShr: {
      const int64_t x = r(i.b), y = r(i.c);
      r(i.a) = arithmetic(i.op, type, x, y, w.costs.half);
      if (core.exceptions == 0xFFFF || !is_float(type) || i.op > Op::kDiv) break;
      const int bits = raised(i.op, type, x, y, r(i.a), w.costs.half) & ~core.exceptions;
      if (bits) return failed(kException, bits);
      break;
    }
    case Op::kNeg: r(i.a) = negated(type, r(i.b)); break;
    case Op::kInvert: r(i.a) = wrapped(type, ~r(i.b)); break;
    case Op::kNot: r(i.a) = r(i.b) == 0; break;
    case Op::kEq: case Op::kNe: case Op::kLt: case Op::kLe: case Op::kGt: case Op::kGe:
      r(i.a) = compare(i.op, type, r(i.b), r(i.c), w.costs.half); break;
    case Op::kCast: r(i.a) = cast(type, Type(i.c), r(i.b), w.costs.half); break;
    case Op::kLoad: case Op::kStore: {
      const bool stores = i.op == Op::kStore;
      const int where = place(r(stores ? i.a : i.b), i.c);
      if (in_registers(where) || (task->debt > 0 && is_shared(core, where, bytes_of(type))))
        return Outcome::kInTime;
      uint8_t* const bytes = locate(core, where, bytes_of(type), stores);
      if (!bytes) return failed(kOutsideMemory, where);
      if (stores) {
        copy(bytes, &r(i.b), bytes_of(type));
      } else {
        int64_t value = 0;
        copy(&value, bytes, bytes_of(type));
        r(i.a) = wrapped(type, value);
      }
      break;
    }
    case Op::kMove: {
      const int to = int(r(i.a) & 0xFFFF), from = int(r(i.b) & 0xFFFF);
      if (task->debt > 0 && (is_shared(core, to, i.c) || is_shared(core, from, i.c)))
        return Outcome::kInTime;
      uint8_t* const target = locate(core, to, i.c, true);
      const uint8_t* const source = locate(core, from, i.c, false);
      if (!target || !source) return failed(kOutsideMemory, target ? from : to);
      std::memmove(target, source, size_t(i.c));
      break;
    }
    case Op::kJump:
      next = i.a;
      if (open) w.recorder->jump(open, cycle + task->debt, true, next);
      break;
    case Op::kJumpIf:
      if (r(i.b)) next = i.a, jump(i, task, work);
      if (open) record_branch(w, core, i, cycle, task->debt, open, r(i.b), next);
      break;
    case Op::kJumpUnless:
      if (!r(i.b)) next = i.a, jump(i, task, work);
      if (open) record_branch(w, core, i, cycle, task->debt, open, !r(i.b), next);
      break;
    case Op::kCall: case Op::kCallAt: {
      const int64_t to = i.op == Op::kCall ? i.a : r(i.a);
      if (core.depth == kDeepestCall || core.base + i.b > program(core).frame)
        return failed(kTooDeep, 0);
      if (to < 0 || to >= int64_t(program(core).code.size())) return failed(kBadCode, to);
      w.frames[frame_of(w, core, core.depth++)] = {next, core.base};
      core.base += i.b, task->registers += i.b, next = int(to);
      if (open && i.op == Op::kCall) ++open->calls;
      else if (open) w.recorder->state(core.cell, cycle + task->debt, kComputes, next, 1);
      break;
    }
    case Op::kReturn: {
      if (core.depth == 0) return Outcome::kInTime;
      const Frame& frame = w.frames[frame_of(w, core, --core.depth)];
      next = frame.pc, core.base = frame.base, task->registers = &reg(core, 0);
      if (open && --open->calls < 0) w.recorder->state(core.cell, cycle + task->debt, kComputes, next, 1);
      break;
    }
    case Op::kDsdSet: {
      const int shift = 16 * i.type;
      r(i.a) = int64_t((uint64_t(r(i.b)) & ~(0xFFFFull << shift)) |
                       uint64_t(uint16_t(r(i.c))) << shift);
      break;
    }
    case Op::kDsdGet:
      r(i.a) = i.type == 2 ? int16_t(field(uint64_t(r(i.b)), 2)) : field(uint64_t(r(i.b)), i.type);
      break;
    case Op::kDsrGet:  // the end of an operation may change it
      if (task->debt > 0 && core.threads) return Outcome::kInTime;
      r(i.a) = int64_t(dsr(core, i.type, i.b).value);
      break;
    case Op::kElement: {
      const uint64_t d = uint64_t(r(i.b));
      const int64_t step = int16_t(field(d, 2)) * bytes_of(type);
      r(i.a) = place(field(d, 0), int64_t(uint64_t(r(i.c)) * uint64_t(step)));
      break;
    }
    case Op::kActivate: case Op::kBlock: case Op::kUnblock: case Op::kLoadDsr: case Op::kDsrBase:
    case Op::kOperate: case Op::kReceive: case Op::kSend: case Op::kConfigGet: case Op::kConfigSet:
    case Op::kIntrinsic: case Op::kFault: case Op::kWait: return Outcome::kInTime;
    default: return failed(kBadCode, int64_t(i.op));
  }
  task->pc = next;
  return Outcome::kDone;
}

// An instruction that others see, in its cycle; whether the task goes on at once.
inline bool act(Wafer& w, Core& core, int64_t cycle, const Instruction& i, Worker* worker) {
  const auto r = [&](int k) -> int64_t& { return reg(core, k); };
  const int pc = core.pc;
  switch (i.op) {
    case Op::kActivate: core.active |= 1u << (r(i.a) & 31); break;
    case Op::kBlock: core.blocked[i.type] |= 1u << (r(i.a) & 31); break;
    case Op::kUnblock: core.blocked[i.type] &= ~(1u << (r(i.a) & 31)); break;
    case Op::kLoadDsr: {
      const DsrRow& row = program(core).dsr_loads[i.a];
      dsr(core, row.file, row.id) = {uint64_t(r(i.b)), i.a};
      break;
    }
    case Op::kDsrBase: {
      uint64_t& value = dsr(core, i.type, i.b).value;
      value = (value & ~0xFFFFull) | uint16_t(r(i.c));
      break;
    }
    case Op::kOperate:
      ++core.pc;
      return operate(w, core, cycle, pc, i, worker);
    case Op::kReceive:
      if (receive_one(w, core, i, worker)) break;
      core.main = Main::kReceiving;
      return false;
    case Op::kSend:
      if (send_one(w, core, i, worker)) break;
      core.main = Main::kSending;
      return false;
    case Op::kLoad: case Op::kStore: case Op::kConfigGet: case Op::kConfigSet:
      if (!configure(w, core, cycle, i, worker)) return stop_task(core), false;
      break;
    case Op::kIntrinsic: intrinsic(w, core, cycle, i, worker); break;
    case Op::kFault: fault(core, kMessage, pc, i.a, worker); return stop_task(core), false;
    case Op::kWait:  // one that works has been paid for
      if (i.type || !(i.c > 0 || runs(core, i.a))) break;
      core.main = Main::kWaiting, core.awaited = int8_t(i.a), w.wake[core.cell] = cycle + i.c;
      return false;
    default:  // RETURN from the outermost function
      core.main = Main::kIdle;
      if (core.task == Task::kFunction) ++worker->answered;
      if (w.recorder) record_task(w, core, cycle, true);
      return false;
  }
  ++core.pc;
  return true;
}

}  // namespace
}  // namespace wafer::csl
