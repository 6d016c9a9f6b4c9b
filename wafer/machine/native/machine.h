// All PEs in step, what the host does to them, and what they wait for.
#pragma once
#include "tasks.h"
#include "team.h"

namespace wafer::csl {

enum Status { kQuiet, kReady, kFaulted, kLimit, kGoesOn };

// Why something waits; engine.py has the words.
enum Reason {
  kNoReason, kForData, kForRoom, kFifoEmpty, kFifoFull, kThreadBlocked, kTaskBlocked, kWordUnread,
  kForCommand, kInRouter, kForThread
};
struct Waiting {
  int32_t x, y, thread, task, task_id, reason, detail, pc;
};

// One cycle of a PE, in the phases of `step` in reference/engine.py. The first, depart, is over
// for all routers that this one sees.
[[gnu::always_inline]] static inline bool step(Wafer& w, Core& core, Worker* worker) {
  const int cell = core.cell;
  bool moved = false;
  Wavelet sent;
  if (core.code) {
    // 2. Run tasks: the instructions that fall into this cycle.
    moved |= run_tasks(w, core, w.cycle, worker);
    // 3. Step operations: one step of one operation.
    if (core.threads) {
      const bool waits = core.main == Main::kOperating;
      moved |= step_operations(w, core, worker);
      if (waits && core.main == Main::kRunning) w.wake[cell] = w.cycle + 1;
    }
    // 4. Drain: a word of an output queue, or of the host, goes to the ramp.
    if (core.sending || worker->fresh) sent = drain(w, core, &moved, worker);
    if (core.feeding) moved |= feed(w, core);
  }
  // 5. Move: words arrive in the router, go up and down the ramp, and enter input queues.
  const int changes = move(w, core, sent, worker);
  moved |= changes & kMoved;
  // 6. Dispatch: an idle PE starts a task.
  if (may_dispatch(core)) moved |= dispatch(w, core, w.cycle, worker);
  if (moved) changed(w, cell, changes & kSeen);
  return moved;
}

// Phases 2 to 6 of rows [from, to).
static inline void arrive(Wafer& w, int from, int to, Worker* worker) {
  for (int cell = from * w.width; cell < to * w.width; ++cell) {
    if (!w.visit[cell] && w.wake[cell] != w.cycle) continue;
    w.visit[cell] = 0;
    worker->moved |= step(w, w.cores[cell], worker);
  }
}

// In machine.cc: what PEs hold before the first cycle, what begins by itself, and what waits.
void load(Wafer& w, Reader& in);
void start(Wafer& w);
std::vector<Waiting> waiting(Wafer& w);

class Machine {
 public:
  explicit Machine(Reader in) : w_(in) {
    load(w_, in), start(w_);
    profile_.resize(w_.programs.size()), work_.resize(w_.programs.size());
  }

  // Until nothing can change, a fault, all of the host's calls have been answered, or the limit.
  Status run(int64_t most, int threads) {
    threads = std::clamp(threads, 1, std::min(w_.rows, kMostThreads));
    const int64_t limit = most < INT64_MAX - w_.cycle ? w_.cycle + most : INT64_MAX;
    const bool called = unanswered_ > 0;
    Status status = w_.cycle < limit ? kQuiet : kLimit;
    bool running = !fault_.kind && w_.cycle < limit;
    if (fault_.kind) status = kFaulted;
    std::vector<Worker> workers(threads);
    for (Worker& worker : workers)
      for (const Program& p : w_.programs) {
        worker.profile.emplace_back(p.code.size());
        worker.work.emplace_back(p.code.size());
      }
    run_team(threads, [&](int id, Barrier& barrier) {
      const int from = int(int64_t(w_.rows) * id / threads);
      const int to = int(int64_t(w_.rows) * (id + 1) / threads);
      // Only a range's first and last rows get words from other threads.
      workers[size_t(id)].own_from = from ? (from + 1) * w_.width : 0;
      workers[size_t(id)].own_to = to < w_.rows ? (to - 1) * w_.width : w_.cells();
      while (running) {
        // A row arrives once it and its neighbours have left, while it is still in the caches; what
        // another thread's rows see of this thread's must have left before both go on.
        Worker& worker = workers[size_t(id)];
        if (from < to) depart(w_, from, from + 1, &worker);
        if (to - 1 > from) depart(w_, to - 1, to, &worker);
        barrier.wait([] {});
        for (int row = from; row < to; ++row) {
          if (row + 1 < to - 1) depart(w_, row + 1, row + 2, &worker);
          arrive(w_, row, row + 1, &worker);
        }
        barrier.wait([&] {
          status = close(&workers, called, limit);
          running = status == kGoesOn;
        });
      }
    });
    for (Worker& worker : workers) {
      prints_.insert(prints_.end(), worker.prints.begin(), worker.prints.end());
      for (size_t k = 0; k < w_.programs.size(); ++k) {
        profile_[k].resize(w_.programs[k].code.size());
        work_[k].resize(w_.programs[k].code.size());
        for (size_t pc = 0; pc < profile_[k].size(); ++pc) {
          profile_[k][pc] += worker.profile[k][pc];
          const Work& work = worker.work[k][pc];
          work_[k][pc].operations += work.operations, work_[k][pc].elements += work.elements;
          work_[k][pc].reads += work.reads, work_[k][pc].writes += work.writes;
        }
      }
    }
    std::stable_sort(prints_.begin(), prints_.end(), [](const Print& a, const Print& b) {
      return std::tie(a.cycle, a.cell) < std::tie(b.cycle, b.cell);
    });
    return status;
  }

  // Whether there is such a PE, and one with a program.
  bool has(int cell) const { return cell >= 0 && cell < w_.cells(); }
  bool runs(int cell) const { return has(cell) && w_.cores[cell].code; }

  // Calls a function on a PE once what was called before has been answered; false if the PE has no
  // such instruction, or not as many registers.
  bool launch(int cell, int entry, const int64_t* words, int count) {
    if (!runs(cell) || entry < 0 || count < 0) return false;
    const Program& p = program(w_.cores[cell]);
    if (size_t(entry) >= p.code.size() || count > p.frame + p.slack) return false;
    host(w_, cell).launches.push_back({entry, {words, words + count}});
    w_.cores[cell].called = true;
    unanswered_ += 2;  // it returns, and it frees the command stream
    w_.visit[cell] = 1;
    return true;
  }

  bool has_command(int cell) const {
    const Core& core = w_.cores[cell];
    return core.commanded || (core.main != Main::kIdle && core.task == Task::kFunction) ||
           core.called;
  }

  uint8_t* bytes(int cell, int64_t address, int64_t count, bool write) {
    if (!runs(cell) || address < 0 || count < 0) return nullptr;
    const Core& core = w_.cores[cell];
    const int64_t end = int64_t(program(core).memory.size()) + (write ? 0 : kPad);
    return count > end || address > end - count ? nullptr : core.memory + address;
  }

  // Copies the first bytes of all PEs with a program, one after another, to the host or from it;
  // nothing if a PE has not as many.
  bool memories(int program, int64_t count, uint8_t* host, bool write) {
    for (const Core& core : w_.cores) {
      if (core.program != program || !core.code) continue;
      uint8_t* const own = bytes(core.cell, 0, count, write);
      if (!own) return false;
      std::memcpy(write ? own : host, write ? host : own, size_t(count));
      host += count;
    }
    return true;
  }

  // Of each PE: cycles in which its CE works, and the cycle behind the last of them.
  void worked(int64_t* out) const {
    for (const Core& core : w_.cores) *out++ = core.worked, *out++ = core.ended;
  }

  void inject(int cell, int slot, const uint32_t* words, int64_t count) {
    Host& to = host(w_, cell);
    to.in[slot].insert(to.in[slot].end(), words, words + count);
    if (count) w_.cores[cell].feeding |= 1u << slot, w_.visit[cell] = 1;
  }

  // Takes up to `most` words that the PE has sent to the host.
  int64_t collect(int cell, int slot, uint32_t* words, int64_t most) {
    std::deque<uint32_t>& from = host(w_, cell).out[slot];
    const int64_t count = std::min<int64_t>(most, int64_t(from.size()));
    std::copy_n(from.begin(), count, words);
    from.erase(from.begin(), from.begin() + count);
    return count;
  }
  int64_t collectable(int cell, int slot) { return int64_t(host(w_, cell).out[slot].size()); }

  // Words that come from outside by a side, and what has left by one since it was opened.
  bool is_outer(int cell, int slot, int side) const {
    return has(cell) && slot >= 0 && side >= 0 && side < 4 && !(w_.sides[cell] >> side & 1);
  }
  void enter_by(int cell, int slot, int side, const uint32_t* words, const uint8_t* controls,
                int64_t count) {
    Port& to = port(w_, cell, swapped(w_, w_.at(cell, slot), slot, side), side);
    for (int64_t k = 0; k < count; ++k)
      to.in.push_back({words[k], kValid | (controls[k] ? kControl : 0)});
    w_.visit[cell] = 1;
  }

  void open(int cell, int slot, int side) { port(w_, cell, slot, side).takes = true; }
  const Port* opened(int cell, int slot, int side) const { return find_port(w_, cell, slot, side); }

  std::vector<Waiting> waiting() { return csl::waiting(w_); }

  // Let operations that read or write beyond these variables of a program be faults.
  void check_bounds(int program, std::vector<Span> variables) {
    if (program < 0 || size_t(program) >= w_.programs.size()) return;
    w_.variables.resize(w_.programs.size()), w_.checks_bounds = true;
    w_.variables[size_t(program)] = std::move(variables);
  }

  // From now on; what runs already begins now.
  void record(const Recorder::Settings& settings) {
    if (!settings.fits(w_.rows, w_.width)) return;
    w_.recorder = std::make_unique<Recorder>(settings, w_.rows, w_.width);
    w_.recorder->advance(w_.cycle);
    for (int cell = 0; cell < w_.cells(); ++cell) {
      const Core& core = w_.cores[cell];
      if (core.main != Main::kIdle) record_task(w_, core, w_.cycle, false);
      each(core.threads, [&](int thread) { record_operation(w_, core, thread, w_.cycle, false); });
    }
  }
  const Recorder* recorder() const { return w_.recorder.get(); }  // none: nothing is recorded

  int64_t cycle() const { return w_.cycle; }
  // Of a color at a PE; -1 if there is none.
  int slot(int cell, int color) const {
    return !has(cell) || color < 0 || color >= kColors ? -1 : w_.slot[color];
  }
  const Fault& fault() const { return fault_; }
  const std::vector<Print>& prints() const { return prints_; }
  const uint32_t* links() const { return w_.links.data(); }
  // By program: cycles by instruction, over all its PEs; empty before the first run.
  const std::vector<std::vector<int64_t>>& profiles() const { return profile_; }

  // Of a program: what its operations have done, by instruction, over all its PEs; those that still
  // run with what they have done so far.
  std::vector<Work> work(int program) const {
    std::vector<Work> out = work_[size_t(program)];
    out.resize(w_.programs[size_t(program)].code.size());
    for (const Core& core : w_.cores) {
      if (core.program != program) continue;
      each(core.threads, [&](int thread) {
        const Operation& o = running(core, thread);
        add(o, &out[size_t(o.pc)]);
      });
    }
    return out;
  }

 private:
  static constexpr int kMostThreads = 256;

  // Ends a cycle, and goes on to the next one in which something can happen.
  Status close(std::vector<Worker>* workers, bool called, int64_t limit) {
    w_.visit.swap(w_.next);
    bool moved = false;
    for (Worker& worker : *workers) {
      moved |= worker.moved, w_.swaps |= worker.swaps;
      if (worker.fault.kind && (!fault_.kind || worker.fault.cell < fault_.cell))
        fault_ = worker.fault;
      unanswered_ -= worker.answered;
      worker.moved = false, worker.answered = 0;
    }
    if (fault_.kind) return kFaulted;
    const int64_t next = moved ? w_.cycle + 1 : soonest();
    if (next == kNever) {
      ++w_.cycle;
      return kQuiet;
    }
    w_.cycle = std::min(next, limit);
    if (w_.recorder) w_.recorder->advance(w_.cycle);
    if (called && !unanswered_) return kReady;
    return w_.cycle < limit ? kGoesOn : kLimit;
  }

  int64_t soonest() const {
    int64_t out = kNever;
    for (const int64_t wake : w_.wake)
      if (wake > w_.cycle) out = std::min(out, wake);
    return out;
  }

  Wafer w_;
  int64_t unanswered_ = 0;  // of the host's calls and commands
  Fault fault_;
  std::vector<Print> prints_;
  std::vector<std::vector<int64_t>> profile_;
  std::vector<std::vector<Work>> work_;
};

}  // namespace wafer::csl
