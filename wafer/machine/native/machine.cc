// The machine's set-up, its report on what waits, and its functions for machine/engine.py.
#include "machine.h"

namespace wafer::csl {

namespace {

// What PEs hold before the first cycle: the tables behind the programs.
void load(Wafer& w, Reader& in) {
  const auto tiles = in.rows<int32_t>();
  const auto registers_of_lanes = in.rows<uint32_t>();  // color and switches
  for (const uint32_t word : in.rows<uint32_t>()) w.beside.push_back(uint16_t(word));
  if (w.costs.wse3) w.beside.resize(w.lanes.size());
  // As many microthreads and queues as anything names: less state stays in the caches.
  for (const Program& p : w.programs) {
    const auto names = [](size_t* count, int id) { *count = std::max(*count, size_t(id + 1)); };
    for (const FabricRow& row : p.fabrics) {
      names(&w.threads, row.queue + 1);
      if (row.sends) names(&w.queues, row.queue);
    }
    for (const OperationRow& row : p.operations) names(&w.threads, row.thread + 1);
    for (const DsrRow& row : p.dsr_loads) names(&w.threads, row.thread + 1);
  }
  const auto held = [](const Program& p) { return (p.memory.size() + kPad + 7) / 8 * 8; };
  const auto frame = [](const Program& p) { return size_t(p.frame + p.slack); };
  size_t memory = 0, registers = 0, dsrs = 0, fifos = 0;
  for (const int32_t tile : tiles) {
    if (tile < 0) continue;
    const Program& p = w.programs[size_t(tile)];
    memory += held(p), registers += frame(p), dsrs += 3 * size_t(p.dsrs), fifos += p.fifos.size();
  }
  w.memory.resize(memory), w.registers.resize(registers);
  w.dsrs.resize(dsrs), w.fifos.resize(fifos);
  w.operations.resize(size_t(w.cells()) * w.threads);
  w.output.resize(size_t(w.cells()) * w.queues);
  w.frames.reset(new Frame[size_t(w.cells()) * kDeepestCall]);

  memory = registers = dsrs = fifos = 0;
  for (int cell = 0; cell < w.cells(); ++cell) {
    Core& core = w.cores[cell];
    core.cell = cell, core.program = tiles[cell];
    core.lanes = w.lanes.data() + size_t(cell) * w.slots;
    if (core.program >= 0) core.code = &w.programs[size_t(core.program)];
    std::fill_n(core.in_slot, kQueues, -1), std::fill_n(core.out_slot, kQueues, -1);
    std::fill_n(core.random, kGenerators, 0xDEADBEEF);
    for (int slot = 0; slot < w.slots; ++slot) {
      const uint32_t word = registers_of_lanes[size_t(cell) * size_t(w.slots) + size_t(slot)];
      Lane& lane = w.at(cell, slot);
      lane.color = uint16_t(word), lane.switches = uint16_t(word >> 16);
      w.swaps |= (lane.color & (kSwapX | kSwapY | kSteered)) != 0;
      lane.pos_rx = lane.pos_tx = lane.switches >> 13 & 3;
      lane.torn_rx = lane.torn_tx = lane.color & kTorn;
      lane.depth = own_depth(w, core, slot);
      aim(w, cell, slot, lane);
    }
    if (!core.code) continue;
    const Program& p = program(core);
    core.memory = w.memory.data() + memory, core.registers = w.registers.data() + registers;
    core.dsrs = w.dsrs.data() + dsrs, core.fifos = w.fifos.data() + fifos;
    core.operations = w.operations.data() + size_t(cell) * w.threads;
    core.output = w.output.data() + size_t(cell) * w.queues;
    memory += held(p), registers += frame(p), dsrs += 3 * size_t(p.dsrs), fifos += p.fifos.size();
  }
  if (!w.filters.empty()) w.filtering.resize(w.lanes.size());
  if (w.costs.hop > 1) w.wires.resize(w.lanes.size());
  for (int slot = 0; slot < w.slots; ++slot)
    w.to_host |= uint32_t(w.costs.streams[w.colors[slot]] == 2) << slot;
  struct Filtered {
    int32_t cell, slot, row;
  };
  for (const auto& [cell, slot, row] : in.rows<Filtered>()) {
    filter_of(w, cell, slot) = {row, w.filters[row].start, w.filters[row].limit1,
                              w.filters[row].most, false};
    w.at(cell, slot).filtered = true;
  }
  for (const auto& settings : in.rows<Recorder::Settings>())
    w.recorder = std::make_unique<Recorder>(settings, w.rows, w.width, w.slots, w.links.data());
  for (int lane = 0; w.recorder && lane < w.cells() * w.slots; ++lane) {
    const Lane& at = w.lanes[size_t(lane)];
    if (at.color || at.switches)
      w.recorder->route(lane / w.slots, lane % w.slots, at.rx, at.tx, at.pos_tx);
  }
}

// Words of a color on the ramp to a router that does not let them in, and those in the router or on
// the way down. Instead of thread, task and task_id: the sides whose router does not take the color
// from here, those that have no room, and whether the router lets nothing in from the ramp. Instead
// of pc: the sides from which the refusing router does.
void held(const Wafer& w, int cell, int slot, std::vector<Waiting>* out) {
  const Lane& lane = w.at(cell, slot);
  const auto add = [&](int refused, int full, bool outside, int rx) {
    out->push_back({cell % w.width, cell / w.width, refused, full, outside, kInRouter,
                    w.colors[slot], rx});
  };
  const bool outside = (lane.up[0] || lane.up[1]) && !(lane.rx & kRampPort);
  if (outside) add(0, 0, true, lane.rx);
  if (outside && !lane.router[0] && !lane.down) return;
  int refused = 0, full = !lane.router[0] && lane.down ? int(kRampPort) : 0, refuser = -1;
  if (lane.router[0]) {
    each(lane.tx & w.sides[cell], [&](int side) {
      const Lane& there = (&lane)[w.reach[side] + arriving(w, lane, slot, side) - slot];
      if (!(there.rx >> opposite(side) & 1)) refused |= 1 << side, refuser = there.rx;
      else if (there.router[1]) full |= 1 << side;
    });
    if (lane.tx & kRampPort && lane.down && lane.size >= lane.depth) full |= kRampPort;
  }
  add(refused, full, false, refuser);
}

void explain(const Wafer& w, int cell, int thread, std::vector<Waiting>* out) {
  const Core& core = w.cores[cell];
  const Operation& o = running(core, thread);
  int reason = kNoReason, detail = 0;
  if (thread != kMainThread && is_blocked(core, Gate::kThread, thread)) reason = kThreadBlocked;
  for (const Stream* s : {&o.src0, &o.src1}) {
    if (reason) break;
    if (s->kind == Operand::kFabric) {
      const int slot = source_slot(w, core, *s);
      if (slot < 0 || !w.at(cell, slot).size)
        reason = kForData, detail = slot < 0 ? -1 : w.colors[slot];
    } else if (s->kind == Operand::kFifo && core.fifos[s->row].used < s->width / 2) {
      reason = kFifoEmpty, detail = s->row;
    }
  }
  if (!reason && o.dest.kind == Operand::kFabric)
    reason = kForRoom, detail = program(core).fabrics[o.dest.row].queue;
  if (!reason && o.dest.kind == Operand::kFifo) reason = kFifoFull, detail = o.dest.row;
  out->push_back({cell % w.width, cell / w.width, thread, o.task, o.task_id, reason, detail, o.pc});
}

// What begins by itself.
void start(Wafer& w, Worker* worker) {
  for (Core& core : w.cores) {
    if (!core.code) continue;
    const Program& p = program(core);
    std::copy(p.memory.begin(), p.memory.end(), core.memory);
    core.active = p.active;
    for (int gate = 0; gate < kGates; ++gate) core.blocked[gate] = uint32_t(p.blocked[gate]);
    for (int queue = 0; queue < kQueues; ++queue) {
      const int in = p.queues[queue].color, out = p.queues[kQueues + queue].color;
      if (in >= 0) bind_input(w, core, queue, w.slot[in]);
      if (out >= 0) core.out_slot[queue] = w.slot[out];
      core.turns[queue] = uint16_t(std::max(p.queues[queue].turn, 0));
    }
    if (p.start >= 0) start_task(w, core, Task::kStart, 0, p.start, -1);
    else if (may_dispatch(core)) dispatch(w, core, -1, worker);
  }
}

}  // namespace

Machine::Machine(Reader in) : w(in), all(w.programs) { load(w, in), start(w, &all); }

std::vector<Waiting> Machine::waiting() {
  std::vector<Waiting> out;
  for (int cell = 0; cell < w.cells(); ++cell) {
    const Core& core = w.cores[cell];
    const auto add = [&](int task, int id, int reason, int detail) {
      out.push_back({cell % w.width, cell / w.width, -1, task, id, reason, detail, -1});
    };
    const auto add_task = [&](int reason, int detail) {
      out.push_back({cell % w.width, cell / w.width, kMainThread, int(core.task), core.task_id, reason,
                     detail, core.pc});
    };
    if (core.program >= 0) {
      each(core.threads, [&](int thread) { explain(w, cell, thread, &out); });
      if (core.main == Main::kReceiving || core.main == Main::kSending) {
        const Instruction& i = program(core).code[core.pc];
        const bool sends = core.main == Main::kSending;
        const uint64_t descriptor = uint64_t(reg(core, sends ? i.a : i.b));
        if (!fits(program(core), Operand::kFabric, descriptor, 0)) continue;  // that is the fault
        Stream s;
        s.row = int16_t(field(descriptor, 0));
        const int slot = sends ? -1 : source_slot(w, core, s);
        const int color = slot < 0 ? -1 : w.colors[slot];
        if (sends) add_task(kForRoom, program(core).fabrics[s.row].queue);
        else add_task(kForData, color);
      }
      if (core.main == Main::kWaiting) add_task(kForThread, core.awaited);
      each(core.active & core.blocked[int(Gate::kLocal)],
           [&](int id) { add(int(Task::kLocal), id, kTaskBlocked, id); });
      const uint32_t read = being_read(core);
      each(core.queued & ~read, [&](int slot) { add(-1, 0, kWordUnread, w.colors[slot]); });
      if (core.commanded && core.main == Main::kIdle)
        add(int(Task::kFunction), host(w, cell).entry, kForCommand, 0);
    }
    each(w.live[cell], [&](int slot) { held(w, cell, slot, &out); });
  }
  return out;
}

}  // namespace wafer::csl

using namespace wafer::csl;

namespace {
Machine& of(void* m) { return *static_cast<Machine*>(m); }

// What the host exchanges on a color by a PE's port; none if the color has no such stream, or the side
// does not lead out of the rectangle.
Exchange* exchange(Wafer& w, int64_t cell, int64_t color, int64_t port, bool enters) {
  int slot = color < 0 || color >= kColors ? -1 : w.slot[color];
  if (slot < 0) return nullptr;
  if (port == kRamp ? w.costs.streams[color] != (enters ? 1 : 2) : w.sides[cell] >> port & 1)
    return nullptr;
  w.open |= port != kRamp;
  if (enters && port != kRamp) slot = swapped(w, w.at(int(cell), slot), slot, int(port));
  return &host(w, int(cell)).exchanges[slot * kPorts + int(port)];
}
}  // namespace

// Called by machine/engine.py, which has checked that there are such PEs and programs. Numbers and
// addresses have 64 bits, results too.
extern "C" {

// None if there is not as much memory.
void* csl_create(const Reader::Table* tables) {
  try {
    return new Machine(Reader(tables));
  } catch (const std::exception&) {
    return nullptr;
  }
}
void csl_destroy(void* m) { delete static_cast<Machine*>(m); }
int64_t csl_run(void* m, int64_t most, int64_t threads) { return of(m).run(most, threads); }

// The cycle; lines printed; of a recording the cycles of a window, the cycle in which the events'
// limit was reached (or -1), the cycles between sampled states, those before which words and values
// are kept; of a fault its kind, cell, task, task's id, pc, detail.
void csl_numbers(void* m, int64_t* out) {
  const Machine& machine = of(m);
  const Fault& f = machine.all.fault;
  const Recorder* r = machine.w.recorder.get();
  const int64_t numbers[] = {machine.w.cycle, int64_t(machine.all.prints.size()),
                             r ? r->every() : 1, r ? r->stopped() : -1, r ? r->sampled_every() : 1,
                             r ? r->words_until() : 0, r ? r->values_until() : 0,
                             f.kind, f.cell, f.task, f.task_id, f.pc, f.detail};
  std::copy(std::begin(numbers), std::end(numbers), out);
}

// Calls a function on a PE once what was called before has been answered; 0 if the PE has not as
// many registers.
int64_t csl_launch(void* m, int64_t cell, int64_t entry, const int64_t* words, int64_t count) {
  Wafer& w = of(m).w;
  const Program& p = program(w.cores[cell]);
  if (count > p.frame + p.slack) return 0;
  host(w, int(cell)).launches.push_back({int32_t(entry), {words, words + count}});
  w.cores[cell].called = true;
  of(m).unanswered += 2;  // it returns, and it frees the command stream
  w.visit[cell] = 1;
  return 1;
}

int64_t csl_has_command(void* m, int64_t cell) {
  const Core& core = of(m).w.cores[cell];
  const bool runs = core.main != Main::kIdle && core.task == Task::kFunction;
  return core.commanded || runs || core.called;
}

// Where the memory of each PE is; none without a program.
void csl_memories(void* m, uint8_t** out) {
  for (const Core& core : of(m).w.cores) *out++ = core.memory;
}

// Of each PE: wavelets that left by each port; cycles in which its CE works, and the cycle behind
// the last of them.
void csl_counters(void* m, uint32_t* links, int64_t* worked) {
  const Wafer& w = of(m).w;
  std::copy(w.links.begin(), w.links.end(), links);
  for (const Core& core : w.cores) *worked++ = core.worked, *worked++ = core.ended;
}

// Words of the host come in by a PE's port, W E S N RAMP from 0 on; how many
// have not come in yet, -1 if there can be none.
int64_t csl_send(void* m, int64_t cell, int64_t color, int64_t port, const uint32_t* words,
                 const uint8_t* controls, int64_t count) {
  Wafer& w = of(m).w;
  Exchange* const to = exchange(w, cell, color, port, true);
  if (!to) return -1;
  for (int64_t k = 0; k < count; ++k)
    to->in.push_back({words[k], kValid | (controls[k] ? kControl : 0)});
  w.cores[cell].feeding = true, w.visit[cell] = 1;
  return int64_t(to->in.size());
}

// From now on a PE's stream to the host holds at most so many words beyond those asked for.
void csl_hold(void* m, int64_t words) { of(m).w.held = words; }

// Asks a stream for so many words more; false if there is no such stream.
int64_t csl_expect(void* m, int64_t cell, int64_t color, int64_t words) {
  Wafer& w = of(m).w;
  Exchange* const from = exchange(w, cell, color, kRamp, false);
  if (!from) return 0;
  from->expected += words, w.visit[cell] = 1;
  return 1;
}

// Takes up to `most` words that a PE has sent to the host by a port, by a side since it was first asked
// for; returns how many there were, -1 if there can be none.
int64_t csl_receive(void* m, int64_t cell, int64_t color, int64_t port, uint32_t* words,
                    int64_t most) {
  Exchange* const from = exchange(of(m).w, cell, color, port, false);
  if (!from) return -1;
  const int64_t there = int64_t(from->out.size()), count = std::clamp<int64_t>(most, 0, there);
  std::copy_n(from->out.begin(), count, words);
  from->out.erase(from->out.begin(), from->out.begin() + count);
  from->expected = std::max<int64_t>(0, from->expected - count);
  return there;
}

// Copies up to `most` rows; returns how many.
int64_t csl_waiting(void* m, Waiting* out, int64_t most) {
  const auto rows = of(m).waiting();
  const int64_t count = std::min(most, int64_t(rows.size()));
  std::copy_n(rows.begin(), count, out);
  return count;
}

// The text of a line; its cycle, cell and length.
const char* csl_print(void* m, int64_t k, int64_t* out) {
  const Print& print = of(m).all.prints[size_t(k)];
  out[0] = print.cycle, out[1] = print.cell, out[2] = int64_t(print.text.size());
  return print.text.data();
}

// What each instruction of a program has done on all its PEs; operations that still run with what
// they have done so far.
void csl_work(void* m, int64_t program, Work* out) {
  const std::vector<Work>& work = of(m).all.work[size_t(program)];
  std::copy(work.begin(), work.end(), out);
  for (const Core& core : of(m).w.cores) {
    if (core.program != program) continue;
    each(core.threads, [&](int thread) {
      const Operation& o = running(core, thread);
      add(o, &out[o.pc]);
    });
  }
}

// Copies up to `most` rows of a kind that was recorded: words over links, events, states, runs of words,
// routes, values of words; returns how many there are.
int64_t csl_recording(void* m, int64_t kind, void* out, int64_t most) {
  const Machine& machine = of(m);
  Recorder& recorder = *machine.w.recorder;
  const auto copied = [&](const auto& rows) {
    using Row = std::remove_const_t<std::remove_reference_t<decltype(rows[0])>>;
    std::copy_n(rows.begin(), std::min(most, int64_t(rows.size())), static_cast<Row*>(out));
    return int64_t(rows.size());
  };
  switch (kind) {
    case 0: return copied(recorder.links());
    case 1: return copied(recorder.events(machine.w.cycle + (machine.all.fault.kind != kNoFault)));
    case 2: return copied(recorder.states());
    case 3: return copied(recorder.runs());
    case 4: return copied(recorder.routes());
    default: return copied(recorder.values());
  }
}
}
