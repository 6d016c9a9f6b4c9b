// The task that runs: its instructions, and which task runs next.
#pragma once
#include "instructions.h"

namespace wafer::csl {
namespace {

constexpr int kMostAtOnce = 4096;  // instructions whose effects nothing else sees
constexpr int kHandlers = 29;  // id of the task that teardown and empty queues raise
constexpr int kNoTask = 31;  // of a control wavelet that is for no task

// Whether a task could begin: none runs, and there is what may start one.
inline bool may_dispatch(const Core& core) {
  return core.main == Main::kIdle && core.code &&
         ((core.active | core.torn | core.flushed) || core.called ||
          (core.queued && core.code->channels));
}

// Starts code of a kind of task; it begins in the next cycle.
inline bool start_task(Wafer& w, Core& core, Task task, int id, int pc, int64_t cycle) {
  core.main = Main::kRunning, core.task = task, core.task_id = id, core.pc = pc;
  core.base = core.depth = 0, core.paid = false;
  core.busy = false;
  w.wake[core.cell] = cycle + 1 + w.costs.switch_task;
  if (w.recorder) record_task(w, core, cycle + 1, false);
  return true;
}

// Data tasks (by color or queue) that a word waits for.
inline uint32_t data_candidates(const Wafer& w, const Core& core) {
  uint32_t out = 0;
  if (!w.costs.wse3) {
    each(core.queued, [&](int slot) { out |= 1u << w.colors[slot]; });
    return out & ~core.blocked[int(Gate::kData)];
  }
  for (int queue = 0; queue < kQueues; ++queue)
    if (core.in_slot[queue] >= 0 && core.queued >> core.in_slot[queue] & 1) out |= 1u << queue;
  return out & ~core.blocked[int(Gate::kData)] & ~core.blocked[int(Gate::kInputQueue)];
}

inline bool start_data_task(Wafer& w, Core& core, int id, int64_t cycle, Worker* worker) {
  const Program& p = program(core);
  const int slot = w.costs.wse3 ? core.in_slot[id] : w.slot[id];
  const uint32_t word = core.lanes[slot].front();
  bool control = core.lanes[slot].front_is_control();
  if (control && is_steered(w, core.lanes[slot])) {  // the end of a message starts no task
    if (p.data_tasks[id] < 0 || being_read(core) >> slot & 1) return false;
    pop_word(core, slot);
    if (w.recorder) w.recorder->word(core.cell, slot, kTaken);
    return true;
  }
  int key = control ? int(word >> 16 & 63) : id;
  const QueueRow* const queue = w.costs.wse3 ? &p.queues[id] : nullptr;
  const bool rotates = queue && queue->limit >= 0 && !control;
  const bool turns = rotates && core.turns[id] == queue->limit;
  if (turns) control = true, key = 0;
  if (control && queue && queue->entry > 0) key = std::min(key + queue->entry, 63);
  int pc = control ? p.control_tasks[key] : p.data_tasks[id];
  if (control && pc < 0 && !w.costs.wse3 && key < kColors) pc = p.data_tasks[key];  // one table
  if ((pc < 0 && !control) || being_read(core) >> slot & 1) return false;
  if (pc < 0) {
    if (key != kNoTask && (p.controls || p.data_tasks[id] >= 0))
      worker->note({kUnboundControl, core.cell, 0, key, -1, w.colors[slot]});
    return false;
  }
  if (rotates) core.turns[id] = uint16_t(turns ? 0 : core.turns[id] + 1);
  pop_word(core, slot);
  if (w.recorder) w.recorder->word(core.cell, slot, kTaken);
  start_task(w, core, control ? Task::kControl : Task::kData, key, pc, cycle);
  if (cycle > core.ended) w.wake[core.cell] += w.costs.data_task;
  reg(core, 0) = word;
  return true;
}

inline bool start_handler(Wafer& w, Core& core, int64_t cycle) {
  const bool teardown = core.torn;
  const int id = __builtin_ctz(teardown ? core.torn : uint32_t(core.flushed));
  if (teardown) core.torn &= core.torn - 1; else core.flushed &= core.flushed - 1;
  const int pc = teardown ? program(core).teardown_handlers[id] : program(core).empty_handlers[id];
  return pc >= 0 && start_task(w, core, teardown ? Task::kTeardown : Task::kEmpty, id, pc, cycle);
}

// Starts a task where none runs, or drops the end of a message; whether it did. A task begins in the
// next cycle.
inline bool dispatch(Wafer& w, Core& core, int64_t cycle, Worker* worker) {
  const Program& p = program(core);
  uint32_t local = core.active & ~core.blocked[int(Gate::kLocal)] & 0x7FFFFFFF;
  const bool handlers = (core.torn | core.flushed) && !is_blocked(core, Gate::kLocal, kHandlers);
  uint32_t data = core.queued && p.channels ? data_candidates(w, core) & p.channels : 0;
  uint32_t candidates = local | data | uint32_t(handlers) << kHandlers;
  // In turn from the last one on: a low id that is always ready must not keep others waiting.
  for (; candidates; ) {
    const uint32_t among = candidates & p.high ? candidates & p.high : candidates;
    const uint32_t above = among & ~((2u << core.last_task) - 1);
    const int id = __builtin_ctz(above ? above : among);
    candidates &= ~(1u << id);
    core.last_task = id;
    if (data >> id & 1 && start_data_task(w, core, id, cycle, worker)) return true;
    if (local >> id & 1) {
      core.active &= ~(1u << id);
      const int pc = p.local_tasks[id];
      if (pc >= 0) return start_task(w, core, Task::kLocal, id, pc, cycle);
    }
    if (id == kHandlers && handlers && start_handler(w, core, cycle)) return true;
  }
  if (!core.called || core.commanded) return false;
  Host& from = host(w, core.cell);
  const Launch launch = std::move(from.launches.front());
  from.launches.pop_front(), from.entry = launch.entry;
  core.called = !from.launches.empty(), core.commanded = true;
  start_task(w, core, Task::kFunction, launch.entry, launch.entry, cycle);
  for (size_t k = 0; k < launch.words.size(); ++k) reg(core, int(k)) = launch.words[k];
  return true;
}

inline void wait_out(Wafer& w, Core& core, int64_t cycle, int64_t debt) {
  w.wake[core.cell] = core.ended = cycle + debt;
  core.worked += debt, core.busy = true;
}

// A task runs ahead of the clock until it has an effect that others see, or meets what microthreads
// read and write; then it waits until the cycles of what it has done are over.
template <bool kRecords>
inline void interpret(Wafer& w, Core& core, int64_t cycle, Worker* worker) {
  const Instruction* const code = program(core).code.data();
  Work* const work = worker->work[core.program].data();
  const int32_t paid = core.paid ? code[core.pc].cycles : 0;  // for the first one
  core.paid = false, work[core.pc].cycles -= paid;
  Ahead task{core.pc, &reg(core, 0), -paid};
  OpenState* const open = kRecords ? w.recorder->last(core.cell) : nullptr;
  if (open) w.recorder->resume(core.cell, cycle, paid, core.pc);
  for (int budget = kMostAtOnce; budget > 0; --budget) {
    const Instruction& i = code[task.pc];
    Work* const its = work + task.pc;
    task.debt += i.cycles, its->cycles += i.cycles;
    const Outcome outcome = compute(w, core, i, cycle, &task, kRecords ? open : nullptr, its, worker);
    if (outcome == Outcome::kDone) continue;
    if (outcome == Outcome::kFault) return stop_task(core);
    core.pc = task.pc;
    if (task.debt > 0) {
      core.paid = true;
      if (kRecords && open) open->due = cycle + task.debt;
      return wait_out(w, core, cycle, task.debt);
    }
    if (!act(w, core, cycle, i, worker)) return;
    task.pc = core.pc;
  }
  core.pc = task.pc;
  wait_out(w, core, cycle, task.debt + (task.debt == 0));
}

// The state of a PE in this cycle, after its tasks and operations; works: an operation did a step. Of
// cycles that a task has run ahead of, `interpret` has recorded the path.
inline void record_state(Wafer& w, const Core& core, bool works) {
  if (core.busy && core.main == Main::kRunning) return;
  const bool computes = works || core.busy || core.main == Main::kRunning;
  if (core.main == Main::kOperating || (core.main == Main::kIdle && core.threads)) {
    const int thread = core.main == Main::kOperating ? kMainThread : __builtin_ctz(core.threads);
    const Wait& wait = core.waits[thread];
    const int state = computes ? kComputes : wait.needs & ~core.queued ? kWaitsForWord
        : wait.fills & core.full ? kWaitsToSend : kWaitsOtherwise;
    return w.recorder->state(core.cell, w.cycle, state, running(core, thread).pc);
  }
  const int state = computes ? kComputes : core.main == Main::kReceiving ? kWaitsForWord
      : core.main == Main::kSending ? kWaitsToSend : core.main == Main::kIdle ? kStateIdle : kWaitsOtherwise;
  w.recorder->state(core.cell, w.cycle, state, core.main == Main::kIdle ? -1 : core.pc);
}

// Goes on with the task; whether it did anything.
template <bool kRecords>
inline bool run_tasks(Wafer& w, Core& core, int64_t cycle, Worker* worker) {
  if (core.main == Main::kIdle || core.main == Main::kOperating) return false;
  if (core.main == Main::kReceiving || core.main == Main::kSending) {
    const Instruction& i = program(core).code[core.pc];
    const bool sends = core.main == Main::kSending;
    if (!(sends ? send_one(w, core, i, worker) : receive_one(w, core, i, worker))) return false;
    core.main = Main::kRunning, ++core.pc, w.wake[core.cell] = cycle + 1;
    return true;
  }
  if (w.wake[core.cell] > cycle) return false;
  if (core.main == Main::kWaiting) {
    if (runs(core, core.awaited)) return false;
    core.main = Main::kRunning, core.pc += program(core).code[core.pc].op == Op::kWait;
  }
  core.busy = false;
  interpret<kRecords>(w, core, cycle, worker);
  return true;
}

}  // namespace
}  // namespace wafer::csl
