// The machine's set-up, its report on what waits, and its functions for machine/engine.py.
#include "machine.h"

namespace wafer::csl {

Machine* Machine::create(Reader in) {
  const int rows = in.next(), width = in.next(), edges = in.next();
  if (rows < 1 || width < 1) throw std::length_error("no PEs");
  Costs costs;
  in.fill(&costs, 1);
  std::vector<int> colors;
  for (const int32_t color : in.rows<int32_t>()) colors.push_back(color);
  std::vector<FilterRow> filters = in.rows<FilterRow>();
  std::vector<Program> programs;
  for (int count = in.next(); count > 0; --count) programs.emplace_back(in);
  const std::vector<int32_t> tiles = in.rows<int32_t>();
  auto* machine = new Machine(rows, width, edges, colors, filters, costs, std::move(programs));
  machine->set_up(in, tiles);
  machine->start();
  return machine;
}

void Machine::set_up(Reader& in, const std::vector<int32_t>& tiles) {
  // As many microthreads and queues as anything names: less state stays in the caches.
  for (const Program& p : programs_) {
    const auto names = [](size_t* count, int id) { *count = std::max(*count, size_t(id + 1)); };
    for (const FabricRow& row : p.fabrics) {
      names(&threads_, row.queue + 1);
      if (row.sends) names(&queues_, row.queue);
    }
    for (const OperationRow& row : p.operations) names(&threads_, row.thread + 1);
    for (const DsrRow& row : p.dsr_loads) names(&threads_, row.thread + 1);
  }
  const auto held = [](const Program& p) { return (p.memory.size() + kPad + 7) / 8 * 8; };
  const auto frame = [](const Program& p) { return size_t(p.frame + p.slack); };
  size_t memory = 0, registers = 0, dsrs = 0, fifos = 0;
  for (const int32_t tile : tiles) {
    if (tile < 0) continue;
    const Program& p = programs_[size_t(tile)];
    memory += held(p), registers += frame(p), dsrs += 3 * size_t(p.dsrs), fifos += p.fifos.size();
  }
  memory_.resize(memory), registers_.resize(registers), dsrs_.resize(dsrs), fifos_.resize(fifos);
  operations_.resize(size_t(cells()) * threads_);
  output_.resize(size_t(cells()) * queues_);
  frames_.reset(new Frame[size_t(cells()) * kDeepestCall]);

  memory = registers = dsrs = fifos = 0;
  for (int cell = 0; cell < cells(); ++cell) {
    Core& core = cores_[cell];
    core.cell = cell, core.program = tiles[cell];
    core.lanes = lanes_.data() + size_t(cell) * slots_;
    if (core.program >= 0) core.code = &programs_[size_t(core.program)];
    std::fill_n(core.in_slot, kQueues, -1), std::fill_n(core.out_slot, kQueues, -1);
    for (int slot = 0; slot < slots_; ++slot) {
      const uint32_t word = uint32_t(in.next());  // colour and switch registers
      Lane& lane = at(cell, slot);
      lane.color = uint16_t(word), lane.switches = uint16_t(word >> 16);
      lane.pos_rx = lane.pos_tx = lane.switches >> 13 & 3;
      lane.torn_rx = lane.torn_tx = lane.color & kTorn;
      lane.depth = own_depth(core, slot);
      aim(lane);
    }
    if (!core.code) continue;
    const Program& p = program(core);
    core.memory = memory_.data() + memory, core.registers = registers_.data() + registers;
    core.dsrs = dsrs_.data() + dsrs, core.fifos = fifos_.data() + fifos;
    core.operations = operations_.data() + size_t(cell) * threads_;
    core.output = output_.data() + size_t(cell) * queues_;
    memory += held(p), registers += frame(p), dsrs += 3 * size_t(p.dsrs), fifos += p.fifos.size();
  }
  for (int slot = 0; slot < slots_; ++slot)
    to_host_ |= uint32_t(costs_.streams[colors_[slot]] == 2) << slot;
  for (int count = in.next(); count > 0; --count) {
    const int cell = in.next(), slot = in.next(), row = in.next();
    at(cell, slot).filter = {row, filters_[row].start, filters_[row].limit1, true, false};
  }
}

void Machine::start() {
  Worker worker;
  profile_.resize(programs_.size()), work_.resize(programs_.size());
  for (const Program& p : programs_) worker.work.emplace_back(p.code.size());
  for (int cell = 0; cell < cells(); ++cell) {
    Core& core = cores_[cell];
    if (!core.code) continue;
    const Program& p = program(core);
    std::copy(p.memory.begin(), p.memory.end(), core.memory);
    core.active = p.active;
    for (int gate = 0; gate < kGates; ++gate) core.blocked[gate] = uint32_t(p.blocked[gate]);
    if (!costs_.wse3) core.blocked[int(Gate::kData)] |= core.blocked[int(Gate::kColor)];
    for (int queue = 0; queue < kQueues; ++queue) {
      const int in = p.queues[queue].color, out = p.queues[kQueues + queue].color;
      if (in >= 0) bind_input(core, queue, slot_[in]);
      if (out >= 0) core.out_slot[queue] = slot_[out];
    }
    if (p.start >= 0) begin(core, Task::kStart, 0, p.start, -1);
    else if (may_dispatch(core)) dispatch(core, -1, &worker);
  }
}

std::vector<Waiting> Machine::waiting() {
  std::vector<Waiting> out;
  for (int cell = 0; cell < cells(); ++cell) {
    const Core& core = cores_[cell];
    const auto add = [&](int task, int id, int reason, int detail) {
      out.push_back({cell % width_, cell / width_, -1, task, id, reason, detail, -1});
    };
    if (core.program >= 0) {
      each(core.threads, [&](int thread) { explain(cell, thread, &out); });
      if (core.main == Main::kReceiving || core.main == Main::kSending) {
        const Instruction& i = program(core).code[core.pc];
        const bool sends = core.main == Main::kSending;
        const uint64_t descriptor = uint64_t(reg(core, sends ? i.a : i.b));
        if (!fits(program(core), Operand::kFabric, descriptor, 0)) continue;  // that is the fault
        Stream s;
        s.row = int16_t(field(descriptor, 0));
        const int slot = sends ? -1 : source_slot(core, s);
        out.push_back({cell % width_, cell / width_, kMainThread, int(core.task), core.task_id,
                       sends ? kForRoom : kForData,
                       sends ? program(core).fabrics[s.row].queue : slot < 0 ? -1 : colors_[slot],
                       core.pc});
      }
      each(core.active & core.blocked[int(Gate::kLocal)],
           [&](int id) { add(int(Task::kLocal), id, kTaskBlocked, id); });
      const uint32_t read = being_read(core);
      each(core.queued & ~read, [&](int slot) { add(-1, 0, kWordUnread, colors_[slot]); });
      if (core.commanded && core.main == Main::kIdle)
        add(-1, 0, kForCommand, int(host(cell).launches.size()));
    }
    each(live_[cell], [&](int slot) { out.push_back(held(cell, slot)); });
  }
  return out;
}

// A word in a router or on its ramp. Instead of thread, task and task_id: the sides whose router does
// not take the colour from here, those that have no room, and whether the router lets nothing in
// from the ramp. Instead of pc: the sides from which the refusing router does.
Waiting Machine::held(int cell, int slot) {
  const Lane& lane = at(cell, slot);
  int refused = 0, full = 0, refuser = -1;
  const bool outside = !lane.router_flag[0] && !lane.down_flag && !(lane.rx & kRampPort);
  if (lane.router_flag[0]) {
    each(lane.tx & sides_[cell], [&](int side) {
      const Lane& there = (&lane)[reach_[side] + arriving(lane, slot, side) - slot];
      if (!(there.rx >> opposite(side) & 1)) refused |= 1 << side, refuser = there.rx;
      else if (there.router_flag[1]) full |= 1 << side;
    });
    if (lane.tx & kRampPort && lane.down_flag && lane.size >= lane.depth) full |= kRampPort;
  } else if (lane.down_flag) {
    full = kRampPort;
  }
  return {cell % width_, cell / width_, refused, full, outside, kInRouter, colors_[slot],
          outside ? int(lane.rx) : refuser};
}

void Machine::explain(int cell, int thread, std::vector<Waiting>* out) {
  const Core& core = cores_[cell];
  const Operation& o = running(core, thread);
  int reason = kNoReason, detail = 0;
  if (thread != kMainThread && is_blocked(core, Gate::kThread, thread)) reason = kThreadBlocked;
  for (const Stream* s : {&o.src0, &o.src1}) {
    if (reason) break;
    if (s->kind == Operand::kFabric) {
      const int slot = source_slot(core, *s);
      if (slot < 0 || !at(cell, slot).size) reason = kForData, detail = slot < 0 ? -1 : colors_[slot];
    } else if (s->kind == Operand::kFifo && core.fifos[s->row].used < s->width / 2) {
      reason = kFifoEmpty, detail = s->row;
    }
  }
  if (!reason && o.dest.kind == Operand::kFabric)
    reason = kForRoom, detail = program(core).fabrics[o.dest.row].queue;
  if (!reason && o.dest.kind == Operand::kFifo) reason = kFifoFull, detail = o.dest.row;
  out->push_back({cell % width_, cell / width_, thread, o.task, o.task_id, reason, detail, o.pc});
}

}  // namespace wafer::csl

using wafer::csl::Machine;

namespace {
Machine& of(void* m) { return *static_cast<Machine*>(m); }
}  // namespace

// What names no PE, colour, program or line has no effect, and gives 0 or none.
extern "C" {

// None if the numbers are not those of a machine.
void* csl_create(const int32_t* setup, int64_t count) {
  try {
    return Machine::create(wafer::csl::Reader(setup, count));
  } catch (const std::exception&) {
    return nullptr;
  }
}
void csl_destroy(void* m) { delete static_cast<Machine*>(m); }
int64_t csl_cycle(void* m) { return of(m).cycle(); }

int32_t csl_run(void* m, int64_t most, int32_t threads) { return of(m).run(most, threads); }

// 0 if the PE has no such instruction, or not as many registers.
int32_t csl_launch(void* m, int32_t cell, int32_t entry, const int64_t* words, int32_t count) {
  return of(m).launch(cell, entry, words, count);
}

int32_t csl_has_command(void* m, int32_t cell) { return of(m).has(cell) && of(m).has_command(cell); }

// 0 if some bytes are outside of the memory.
int32_t csl_copy(void* m, int32_t cell, int64_t address, int64_t count, uint8_t* host, int32_t write) {
  uint8_t* const own = of(m).bytes(cell, address, count, write);
  if (!own) return 0;
  std::memcpy(write ? own : host, write ? host : own, size_t(count));
  return 1;
}

int32_t csl_inject(void* m, int32_t cell, int32_t color, const uint32_t* words, int64_t count) {
  const int slot = of(m).slot(cell, color);
  if (slot < 0 || count < 0) return 0;
  of(m).inject(cell, slot, words, count);
  return 1;
}

int64_t csl_collectable(void* m, int32_t cell, int32_t color) {
  const int slot = of(m).slot(cell, color);
  return slot < 0 ? 0 : of(m).collectable(cell, slot);
}

int64_t csl_collect(void* m, int32_t cell, int32_t color, uint32_t* words, int64_t most) {
  const int slot = of(m).slot(cell, color);
  return slot < 0 ? 0 : of(m).collect(cell, slot, words, std::max<int64_t>(most, 0));
}

// Ports at the rectangle's sides, W E S N from 0 on; whether there can be one.
int32_t csl_enter(void* m, int32_t cell, int32_t color, int32_t side, const uint32_t* words,
                  const uint8_t* controls, int64_t count) {
  const int slot = of(m).slot(cell, color);
  if (!of(m).is_outer(cell, slot, side)) return 0;
  return of(m).enter_by(cell, slot, side, words, controls, count), 1;
}
int32_t csl_open(void* m, int32_t cell, int32_t color, int32_t side) {
  const int slot = of(m).slot(cell, color);
  if (!of(m).is_outer(cell, slot, side)) return 0;
  return of(m).port(cell, slot, side).takes = true, 1;
}
// Copies up to `most` words; returns how many there are.
int64_t csl_left(void* m, int32_t cell, int32_t color, int32_t side, uint32_t* words, int64_t most) {
  const int slot = of(m).slot(cell, color);
  const auto* port = slot < 0 ? nullptr : of(m).find_port(cell, slot, side);
  if (!port) return 0;
  std::copy_n(port->out.begin(), std::clamp<int64_t>(most, 0, int64_t(port->out.size())), words);
  return int64_t(port->out.size());
}

// Rows of first byte and end.
void csl_check_bounds(void* m, int32_t program, const int32_t* rows, int64_t count) {
  std::vector<wafer::csl::Span> variables;
  for (int64_t k = 0; k < count; ++k) variables.push_back({rows[2 * k], rows[2 * k + 1]});
  of(m).check_bounds(program, std::move(variables));
}

// kind, cell, task, its id, pc, detail.
void csl_fault(void* m, int64_t* out) {
  const auto& f = of(m).fault();
  const int64_t all[] = {f.kind, f.cell, f.task, f.task_id, f.pc, f.detail};
  std::memcpy(out, all, sizeof all);
}

// Copies up to `most` rows; returns how many there are.
int64_t csl_waiting(void* m, wafer::csl::Waiting* out, int64_t most) {
  const auto rows = of(m).waiting();
  std::copy_n(rows.begin(), std::clamp<int64_t>(most, 0, int64_t(rows.size())), out);
  return int64_t(rows.size());
}

int64_t csl_prints(void* m) { return int64_t(of(m).prints().size()); }
const char* csl_print(void* m, int64_t k, int64_t* cycle, int32_t* cell, int64_t* length) {
  if (k < 0 || k >= csl_prints(m)) return *cycle = *length = *cell = 0, nullptr;
  const auto& print = of(m).prints()[size_t(k)];
  *cycle = print.cycle, *cell = print.cell, *length = int64_t(print.text.size());
  return print.text.data();
}

// One number for each instruction of a program that has run.
void csl_profile(void* m, int32_t program, int64_t* out) {
  const auto& profiles = of(m).profiles();
  if (program < 0 || size_t(program) >= profiles.size()) return;
  std::copy(profiles[size_t(program)].begin(), profiles[size_t(program)].end(), out);
}

// Four numbers for each instruction: operations, their elements, words read, words written.
void csl_work(void* m, int32_t program, wafer::csl::Work* out) {
  if (program < 0 || size_t(program) >= of(m).profiles().size()) return;
  const auto work = of(m).work(program);
  std::copy(work.begin(), work.end(), out);
}

// What is recorded from now on: eight numbers, of Recorder::Settings.
void csl_record(void* m, const wafer::csl::Recorder::Settings* settings) {
  of(m).record(*settings);
}
// How many events, cycles of a window, the cycle in which the events' limit was reached (or -1).
void csl_recorded(void* m, int64_t* out) {
  out[0] = 0, out[1] = 1, out[2] = -1;
  if (const auto* recorder = of(m).recorder())
    out[0] = recorder->count(), out[1] = recorder->every(), out[2] = recorder->stopped();
}
void csl_recording(void* m, wafer::csl::Event* events, uint32_t* links) {
  const auto* recorder = of(m).recorder();
  if (!recorder) return;
  const auto all = recorder->events();
  std::copy(all.begin(), all.end(), events);
  std::copy(recorder->links().begin(), recorder->links().end(), links);
}

const uint32_t* csl_links(void* m) { return of(m).links(); }
}
