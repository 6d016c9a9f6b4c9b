// All PEs in step, what the host does to them, and what they wait for.
#pragma once
#include "tasks.h"
#include "team.h"

namespace wafer::csl {

enum Status { kQuiet, kReady, kFaulted, kLimit, kGoesOn };

// Why something waits; tools/reports.py has the words.
enum Reason {
  kNoReason, kForData, kForRoom, kFifoEmpty, kFifoFull, kThreadBlocked, kTaskBlocked, kWordUnread,
  kForCommand, kInRouter, kForThread
};
struct Waiting {
  int32_t x, y, thread, task, task_id, reason, detail, pc;
};

// One cycle of a PE, in the phases of `step` in reference/engine.py. The first, depart, is over
// for all routers that this one sees.
template <bool kRecords>
[[gnu::always_inline]] static inline bool step(Wafer& w, Core& core, Worker* worker) {
  const int cell = core.cell;
  bool moved = false;
  Wavelet sent;
  if (core.code) {
    // 2. Run tasks: the instructions that fall into this cycle.
    moved |= run_tasks<kRecords>(w, core, w.cycle, worker);
    // 3. Step operations: one step of one operation.
    bool works = false;
    if (core.threads) {
      const bool waits = core.main == Main::kOperating;
      moved |= works = step_operations(w, core, worker);
      if (waits && core.main == Main::kRunning) w.wake[cell] = w.cycle + 1;
    }
    if (kRecords) record_state(w, core, works);
    // 4. Drain: a word of an output queue goes to the ramp, and words of the host come in.
    if (core.sending || worker->fresh) sent = drain(w, core, &moved, worker);
  }
  if (core.feeding) moved |= feed(w, core);
  // 5. Move: words arrive in the router, go up and down the ramp, and enter input queues.
  const uint32_t changes = move<kRecords>(w, core, sent, worker);
  moved |= changes & kMoved;
  // 6. Dispatch: an idle PE starts a task.
  if (may_dispatch(core)) moved |= dispatch(w, core, w.cycle, worker);
  if (moved) changed(w, cell, changes & kSeen);
  return moved;
}

// Phases 2 to 6 of rows [from, to).
template <bool kRecords>
static inline void arrive(Wafer& w, int from, int to, Worker* worker) {
  for (int cell = from * w.width; cell < to * w.width; ++cell) {
    if (!w.visit[cell] && w.wake[cell] != w.cycle) continue;
    w.visit[cell] = 0;
    worker->moved |= step<kRecords>(w, w.cores[cell], worker);
  }
}

static inline int64_t soonest(const Wafer& w) {
  int64_t out = kNever;
  for (const int64_t wake : w.wake)
    if (wake > w.cycle) out = std::min(out, wake);
  return out;
}

struct Machine {
  explicit Machine(Reader in);

  // Until nothing can change, a fault, all of the host's calls have been answered, or the limit.
  Status run(int64_t most, int64_t asked) {
    constexpr int64_t kMostThreads = 256;
    const int threads = int(std::clamp<int64_t>(asked, 1, std::min<int64_t>(w.rows, kMostThreads)));
    const int64_t limit = most < INT64_MAX - w.cycle ? w.cycle + most : INT64_MAX;
    const bool called = unanswered > 0;
    bool running = !all.fault.kind && w.cycle < limit;
    Status status = all.fault.kind ? kFaulted : running ? kQuiet : kLimit;
    std::vector<Worker> workers(size_t(threads), Worker(w.programs));
    run_team(threads, [&](int id, Barrier& barrier) {
      const int from = int(int64_t(w.rows) * id / threads);
      const int to = int(int64_t(w.rows) * (id + 1) / threads);
      // Only a range's first and last rows get words from other threads.
      Worker& worker = workers[size_t(id)];
      worker.own_from = from ? (from + 1) * w.width : 0;
      worker.own_to = to < w.rows ? (to - 1) * w.width : w.cells();
      while (running) {
        // A row arrives once it and its neighbours have left, while it is still in the caches; what
        // another thread's rows see of this thread's must have left before both go on.
        if (from < to) depart(w, from, from + 1, &worker);
        if (to - 1 > from) depart(w, to - 1, to, &worker);
        barrier.wait([] {});
        for (int row = from; row < to; ++row) {
          if (row + 1 < to - 1) depart(w, row + 1, row + 2, &worker);
          (w.recorder ? arrive<true> : arrive<false>)(w, row, row + 1, &worker);
        }
        barrier.wait([&] {
          status = close(&workers, called, limit);
          running = status == kGoesOn;
        });
      }
    });
    for (const Worker& worker : workers) {
      all.prints.insert(all.prints.end(), worker.prints.begin(), worker.prints.end());
      for (size_t k = 0; k < all.work.size(); ++k)
        for (size_t pc = 0; pc < all.work[k].size(); ++pc) all.work[k][pc] += worker.work[k][pc];
    }
    std::stable_sort(all.prints.begin(), all.prints.end(), [](const Print& a, const Print& b) {
      return std::tie(a.cycle, a.cell) < std::tie(b.cycle, b.cell);
    });
    return status;
  }

  // Ends a cycle, and goes on to the next one in which something can happen.
  Status close(std::vector<Worker>* workers, bool called, int64_t limit) {
    w.visit.swap(w.next);
    bool moved = false;
    for (Worker& worker : *workers) {
      moved |= worker.moved, w.swaps |= worker.swaps;
      if (worker.fault.kind) all.note(worker.fault);
      unanswered -= worker.answered;
      worker.moved = false, worker.answered = 0;
    }
    if (all.fault.kind) return kFaulted;
    const int64_t next = moved ? w.cycle + 1 : soonest(w);
    w.cycle = next == kNever ? w.cycle + 1 : std::min(next, limit);
    if (w.recorder) w.recorder->advance(w.cycle);
    if (next == kNever) return kQuiet;
    if (called && !unanswered) return kReady;
    return w.cycle < limit ? kGoesOn : kLimit;
  }

  std::vector<Waiting> waiting();

  Wafer w;
  Worker all;              // what has been gathered in all runs
  int64_t unanswered = 0;  // of the host's calls and commands
};

}  // namespace wafer::csl
