// All PEs in step, what the host does to them, and what they wait for.
#pragma once
#include "tasks.h"
#include "team.h"

namespace wafer::csl {

enum Status { kQuiet, kReady, kFaulted, kLimit, kGoesOn };

// Why something waits; engine.py has the words.
enum Reason {
  kNoReason, kForData, kForRoom, kFifoEmpty, kFifoFull, kThreadBlocked, kTaskBlocked, kWordUnread,
  kForCommand, kInRouter
};
struct Waiting {
  int32_t x, y, thread, task, task_id, reason, detail, pc;
};

class Machine : public Tasks {
 public:
  static Machine* create(Reader in);

  // Until nothing can change, a fault, all of the host's calls have been answered, or the limit.
  Status run(int64_t most, int threads) {
    threads = std::clamp(threads, 1, std::min(rows_, kMostThreads));
    const int64_t limit = most < INT64_MAX - cycle_ ? cycle_ + most : INT64_MAX;
    const bool called = unanswered_ > 0;
    Status status = cycle_ < limit ? kQuiet : kLimit;
    bool running = !fault_.kind && cycle_ < limit;
    if (fault_.kind) status = kFaulted;
    std::vector<Worker> workers(threads);
    for (Worker& worker : workers)
      for (const Program& p : programs_) {
        worker.profile.emplace_back(p.code.size());
        worker.work.emplace_back(p.code.size());
      }
    run_team(threads, [&](int id, Barrier& barrier) {
      const int from = int(int64_t(rows_) * id / threads);
      const int to = int(int64_t(rows_) * (id + 1) / threads);
      // Only a range's first and last rows get words from other threads.
      workers[size_t(id)].own_from = from ? (from + 1) * width_ : 0;
      workers[size_t(id)].own_to = to < rows_ ? (to - 1) * width_ : cells();
      while (running) {
        // A row arrives once it and its neighbours have left, while it is still in the caches; what
        // another thread's rows see of this thread's must have left before both go on.
        Worker& worker = workers[size_t(id)];
        if (from < to) leave(from, from + 1, &worker);
        if (to - 1 > from) leave(to - 1, to, &worker);
        barrier.wait([] {});
        for (int row = from; row < to; ++row) {
          if (row + 1 < to - 1) leave(row + 1, row + 2, &worker);
          arrive(row, row + 1, &worker);
        }
        barrier.wait([&] {
          status = close(&workers, called, limit);
          running = status == kGoesOn;
        });
      }
    });
    for (Worker& worker : workers) {
      prints_.insert(prints_.end(), worker.prints.begin(), worker.prints.end());
      for (size_t k = 0; k < programs_.size(); ++k) {
        profile_[k].resize(programs_[k].code.size());
        work_[k].resize(programs_[k].code.size());
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
  bool has(int cell) const { return cell >= 0 && cell < cells(); }
  bool runs(int cell) const { return has(cell) && cores_[cell].code; }

  // Calls a function on a PE once what was called before has been answered; false if the PE has no
  // such instruction, or not as many registers.
  bool launch(int cell, int entry, const int64_t* words, int count) {
    if (!runs(cell) || entry < 0 || count < 0) return false;
    const Program& p = program(cores_[cell]);
    if (size_t(entry) >= p.code.size() || count > p.frame + p.slack) return false;
    host(cell).launches.push_back({entry, {words, words + count}});
    cores_[cell].called = true;
    unanswered_ += 2;  // it returns, and it frees the command stream
    visit_[cell] = 1;
    return true;
  }

  bool has_command(int cell) const {
    const Core& core = cores_[cell];
    return core.commanded || (core.main != Main::kIdle && core.task == Task::kFunction) ||
           core.called;
  }

  uint8_t* bytes(int cell, int64_t address, int64_t count, bool write) {
    if (!runs(cell) || address < 0 || count < 0) return nullptr;
    const Core& core = cores_[cell];
    const int64_t end = int64_t(program(core).memory.size()) + (write ? 0 : kPad);
    return count > end || address > end - count ? nullptr : core.memory + address;
  }

  void inject(int cell, int slot, const uint32_t* words, int64_t count) {
    Host& to = host(cell);
    to.in[slot].insert(to.in[slot].end(), words, words + count);
    if (count) cores_[cell].feeding |= 1u << slot, visit_[cell] = 1;
  }

  // Takes up to `most` words that the PE has sent to the host.
  int64_t collect(int cell, int slot, uint32_t* words, int64_t most) {
    std::deque<uint32_t>& from = host(cell).out[slot];
    const int64_t count = std::min<int64_t>(most, int64_t(from.size()));
    std::copy_n(from.begin(), count, words);
    from.erase(from.begin(), from.begin() + count);
    return count;
  }
  int64_t collectable(int cell, int slot) { return int64_t(host(cell).out[slot].size()); }

  // Words that come from outside by a side, and what has left by one since it was opened.
  bool is_outer(int cell, int slot, int side) const {
    return has(cell) && slot >= 0 && side >= 0 && side < 4 && !(sides_[cell] >> side & 1);
  }
  void enter_by(int cell, int slot, int side, const uint32_t* words, const uint8_t* controls,
                int64_t count) {
    Port& to = port(cell, swapped(at(cell, slot), slot, side), side);
    for (int64_t k = 0; k < count; ++k)
      to.in.push_back({words[k], uint8_t(kValid | (controls[k] ? kControl : 0))});
    visit_[cell] = 1;
  }

  std::vector<Waiting> waiting();

  // Let operations that read or write beyond these variables of a program be faults.
  void check_bounds(int program, std::vector<Span> variables) {
    if (program < 0 || size_t(program) >= programs_.size()) return;
    variables_.resize(programs_.size()), checks_bounds_ = true;
    variables_[size_t(program)] = std::move(variables);
  }

  // From now on; what runs already begins now.
  void record(const Recorder::Settings& settings) {
    if (!settings.fits(rows_, width_)) return;
    recorder_ = std::make_unique<Recorder>(settings, rows_, width_);
    recorder_->advance(cycle_);
    for (int cell = 0; cell < cells(); ++cell) {
      const Core& core = cores_[cell];
      if (core.main != Main::kIdle) record_task(core, cycle_, false);
      each(core.threads, [&](int thread) { Operations::record(core, thread, cycle_, false); });
    }
  }
  const Recorder* recorder() const { return recorder_.get(); }  // none: nothing is recorded

  int64_t cycle() const { return cycle_; }
  // Of a colour at a PE; -1 if there is none.
  int slot(int cell, int color) const {
    return !has(cell) || color < 0 || color >= kColors ? -1 : slot_[color];
  }
  const Fault& fault() const { return fault_; }
  const std::vector<Print>& prints() const { return prints_; }
  const uint32_t* links() const { return links_.data(); }
  // By program: cycles by instruction, over all its PEs; empty before the first run.
  const std::vector<std::vector<int64_t>>& profiles() const { return profile_; }

  // Of a program: what its operations have done, by instruction, over all its PEs; those that still
  // run with what they have done so far.
  std::vector<Work> work(int program) const {
    std::vector<Work> out = work_[size_t(program)];
    out.resize(programs_[size_t(program)].code.size());
    for (const Core& core : cores_) {
      if (core.program != program) continue;
      each(core.threads, [&](int thread) {
        const Operation& o = running(core, thread);
        add(o, &out[size_t(o.pc)]);
      });
    }
    return out;
  }

 private:
  using Tasks::Tasks;
  static constexpr int kMostThreads = 256;

  void set_up(Reader& in, const std::vector<int32_t>& tiles);
  void start();
  void explain(int cell, int thread, std::vector<Waiting>* out);
  Waiting held(int cell, int slot);

  // Phases 2 to 6 of rows [from, to).
  void arrive(int from, int to, Worker* worker) {
    for (int cell = from * width_; cell < to * width_; ++cell) {
      if (!load(visit_[cell]) && wake_[cell] != cycle_) continue;
      store(visit_[cell], uint8_t(0));
      worker->moved |= step(cores_[cell], worker);
    }
  }

  // One cycle of a PE, in the phases of `step` in reference/engine.py. The first, depart, is over
  // for all routers that this one sees.
  [[gnu::always_inline]] bool step(Core& core, Worker* worker) {
    const int cell = core.cell;
    bool moved = false;
    Sent sent;
    if (core.code) {
      // 2. Run tasks: the instructions that fall into this cycle.
      moved |= run_task(core, cycle_, worker);
      // 3. Step operations: one step of one operation.
      if (core.threads) {
        const bool waits = core.main == Main::kOperating;
        moved |= step_operations(core, worker);
        if (waits && core.main == Main::kRunning) wake_[cell] = cycle_ + 1;
      }
      // 4. Drain: a word of an output queue, or of the host, goes to the ramp.
      if (core.sending || worker->fresh) sent = drain(core, &moved, worker);
      if (core.feeding) moved |= feed(core);
    }
    // 5. Move: words arrive in the router, go up and down the ramp, and enter input queues.
    const uint32_t enters = sent && sent.slot() >= 0 ? 1u << sent.slot() : 0;
    int changes = 0;
    uint32_t live = 0;
    each(live_[cell] | incoming_[cell] | core.popped | enters, [&](int slot) {
      const int change = route(core, slot, sent, worker);
      changes |= change, live |= uint32_t(change / kBusy) << slot;
    });
    live_[cell] = live, moved |= changes & kMoved;
    incoming_[cell] = core.popped = 0;
    // 6. Dispatch: an idle PE starts a task.
    if (may_dispatch(core)) moved |= dispatch(core, cycle_, worker);
    if (moved) changed(cell, changes & kSeen);
    return moved;
  }

  // Ends a cycle, and goes on to the next one in which something can happen.
  Status close(std::vector<Worker>* workers, bool called, int64_t limit) {
    visit_.swap(next_);
    bool moved = false;
    for (Worker& worker : *workers) {
      moved |= worker.moved;
      if (worker.fault.kind && (!fault_.kind || worker.fault.cell < fault_.cell))
        fault_ = worker.fault;
      unanswered_ -= worker.answered;
      worker.moved = false, worker.answered = 0;
    }
    if (fault_.kind) return kFaulted;
    const int64_t next = moved ? cycle_ + 1 : soonest();
    if (next == kNever) {
      ++cycle_;
      return kQuiet;
    }
    cycle_ = std::min(next, limit);
    if (recorder_) recorder_->advance(cycle_);
    if (called && !unanswered_) return kReady;
    return cycle_ < limit ? kGoesOn : kLimit;
  }

  int64_t soonest() const {
    int64_t out = kNever;
    for (const int64_t wake : wake_)
      if (wake > cycle_) out = std::min(out, wake);
    return out;
  }

  // What the PEs' state points into.
  Arena<uint8_t> memory_;
  Arena<int64_t> registers_;
  Arena<Operation> operations_;
  Arena<OutputQueue> output_;
  std::vector<Dsr> dsrs_;
  std::vector<Fifo> fifos_;
  size_t threads_ = 1, queues_ = 0;  // operations and output queues of each PE

  int64_t cycle_ = 0, unanswered_ = 0;
  Fault fault_;
  std::vector<Print> prints_;
  std::vector<std::vector<int64_t>> profile_;
  std::vector<std::vector<Work>> work_;
};

}  // namespace wafer::csl
