// The C++ engine with payloads: one cycle of all cells, in the order of router.py and ce.py.
#include "alu.h"
#include "grid.h"
#include "team.h"

namespace wafer {
namespace {

// What the CE does to its colors in one cycle.
struct Issue {
  uint32_t pops = 0, value = 0;
  int send = -1;  // color index
  uint8_t flag = 0;
};

template <int R, int D>
class Machine : public Grid<R, D> {
 public:
  using Base = Grid<R, D>;
  using L = typename Base::L;
  using Base::Base;

  // Runs what was loaded and stores it.
  Outcome run(int64_t max_cycles, int threads) {
    Outcome out;
    const State& s = this->s_;
    out.cycle = *s.cycle, out.progress = *s.progress, out.fault.kind = s.fault[0];
    if (this->p_.start) {
      Fault none;
      for (int cell = 0; cell < this->cells(); ++cell) dispatch(cell, &none);
    }
    const auto goes_on = [&] { return out.progress && !out.fault.kind && out.cycle < max_cycles; };
    std::vector<Fault> faults(threads);
    std::vector<uint8_t> moved(threads);
    bool running = goes_on();
    run_team(threads, [&](int id, Barrier& barrier) {
      const int from = int(int64_t(this->rows_) * id / threads);
      const int to = int(int64_t(this->rows_) * (id + 1) / threads);
      while (running) {
        this->leave(from, to);
        barrier.wait([] {});
        moved[id] = arrive(from, to, out.cycle, &faults[id]);
        barrier.wait([&] {
          this->visit_.swap(this->next_);
          ++out.cycle;
          out.progress = std::any_of(moved.begin(), moved.end(), [](bool m) { return m; });
          for (const Fault& fault : faults) out.fault = first(out.fault, fault);
          running = goes_on();
        });
      }
    });
    this->store();
    return out;
  }

 private:
  // Arrivals, CEs and dispatch of rows [from, to); whether anything changed.
  bool arrive(int from, int to, int cycle, Fault* fault) {
    bool any = false;
    for (int cell = from * this->width_; cell < to * this->width_; ++cell) {
      if (!Base::load8(this->visit_[cell])) continue;
      Base::store8(this->visit_[cell], 0);
      any |= step(cell, cycle, fault);
    }
    return any;
  }

  bool step(int cell, int cycle, Fault* fault) {
    const Program& p = this->p_;
    Core& core = this->cores_[cell];
    Issue issue;
    int chosen = -1;
    const bool waits = choose(cell, core, &chosen);
    if (chosen >= 0) execute(cell, core, chosen, cycle, &issue);
    for (int t = 0; waits && t < p.threads; ++t)
      if (core.threads[t].pc >= 0 && core.threads[t].wait > 0) --core.threads[t].wait;

    bool moved = false, seen = false;
    for (int c = 0; c < p.colors; ++c) {
      L& lane = this->at(cell, c);
      const bool full = lane.router_flag[1];
      const uint8_t rx = lane.rx;
      moved |= route(cell, c, lane, issue, fault);
      seen |= full != bool(lane.router_flag[1]) || rx != lane.rx;
    }
    if (chosen >= 0) seen |= retire(cell, core, chosen);
    const bool started = dispatch(cell, fault);
    const bool any = moved || waits || started || chosen >= 0;
    if (any) this->changed(cell, seen);
    return any;
  }

  // Whether the pipe to the router has room in this cycle.
  bool room_up(const L& lane) const {
    for (int k = 0; k < this->ramp_; ++k)
      if (!lane.up_flag[k]) return true;
    return !lane.router_flag[1] && lane.rx & kRampPort;
  }

  bool has_word(int cell, int c) {
    return (this->at(cell, c).queue_flag[0] & (kValid | kControl)) == kValid;
  }

  // Finds the thread that goes; returns whether any waits out a launch.
  bool choose(int cell, const Core& core, int* chosen) {
    bool waits = false;
    int best = -1;  // rank of the chosen one; without ranks the first that is ready goes
    for (int t = 0; t < this->p_.threads; ++t) {
      if (core.threads[t].pc < 0) continue;
      if (core.threads[t].wait > 0) {
        waits = true;
        continue;
      }
      const Op& op = this->p_.code[core.threads[t].pc];
      const int rank = !this->p_.ranked ? 0 : t ? op.thread_rank : op.main_rank;
      if (rank > best && ready(cell, core, t)) *chosen = t, best = rank;
    }
    return waits;
  }

  bool ready(int cell, const Core& core, int t) {
    const Op& op = this->p_.code[core.threads[t].pc];
    if (t == 0 && op.thread >= 0) return core.threads[op.thread + 1].pc < 0;
    for (const Operand& source : op.src)
      if (source.kind == kFabric && !has_word(cell, source.base)) return false;
    return op.dst.kind != kFabric || room_up(this->at(cell, op.dst.base));
  }

  uint32_t read(int cell, const Core& core, const Operand& o, int i) {
    switch (o.kind) {
      case kMem: return this->mem_[cell * this->stride_ + address(o, i)];
      case kFabric: return this->at(cell, o.base).queue[0];
      case kConst: return uint32_t(o.base);
      case kArg: return core.arg;
      default: return 0;
    }
  }

  void execute(int cell, Core& core, int t, int cycle, Issue* issue) {
    const Op& op = this->p_.code[core.threads[t].pc];
    core.end = cycle + 1, ++core.busy;
    if (t == 0 && op.thread >= 0) return;  // it only starts the microthread
    const int index = op.n - core.threads[t].left, elements = std::min(op.rate, core.threads[t].left);
    for (int k = 0; k < elements; ++k) {
      if (op.dst.kind == kNone) break;
      const uint32_t scalar = op.opcode == kMac ? read(cell, core, op.src[2], index + k) : 0;
      const uint32_t value =
          compute(op.opcode, op.dtype, read(cell, core, op.src[0], index + k),
                  op.opcode > kMov ? read(cell, core, op.src[1], index + k) : 0, scalar);
      if (k == 0) issue->value = value;
      if (op.dst.kind == kMem)
        this->mem_[cell * this->stride_ + address(op.dst, index + k)] = value;
    }
    for (const Operand& source : op.src)
      if (source.kind == kFabric) issue->pops |= 1u << source.base;
    if (op.dst.kind != kFabric) return;
    issue->send = op.dst.base;
    issue->flag = kValid | (op.dst.flags & 1 ? kControl : 0);
    if (op.dst.flags & 2 && core.threads[t].left <= 1) issue->flag |= kAdvance;
  }

  // Of the first n places, 1 to N, of a queue: the compiler is told so, or it warns of other n.
  template <int N>
  static void pop(uint32_t (&data)[N], uint8_t (&flag)[N], int n) {
    const int last = std::clamp(n, 1, N) - 1;
    for (int k = 0; k < last; ++k) data[k] = data[k + 1], flag[k] = flag[k + 1];
    flag[last] = 0;
  }

  template <int N>
  static void push(uint32_t (&data)[N], uint8_t (&flag)[N], int n, uint32_t value, uint8_t bits) {
    for (int k = 0; k < std::min(n, N); ++k)
      if (!flag[k]) {
        data[k] = value, flag[k] = bits;
        return;
      }
  }

  // Moves one color; whether anything moved.
  bool route(int cell, int c, L& lane, const Issue& issue, Fault* fault) {
    const Program& p = this->p_;
    const int ramp = this->ramp_;
    const bool queue_room = this->queue_room(c, lane), go = lane.go;
    const bool enters = !lane.router_flag[1] && lane.rx & kRampPort;
    const uint32_t head = lane.router[0];
    const uint8_t head_flag = lane.router_flag[0];
    bool moved = go;

    // 1. Arrivals: from the CE, then from the neighbours.
    uint32_t got = lane.up[ramp - 1];
    uint8_t got_flag = enters ? lane.up_flag[ramp - 1] : 0;
    int arrivals = got_flag != 0;
    Base::each(lane.rx & this->sides_[cell], [&](int side) {
      const int other = cell + this->offset_[side];
      const int partner = p.swaps ? p.partner[c] : c;
      const bool swaps = this->swapped(other, partner, opposite(side)) == c;
      const L& there = this->at(other, swaps ? partner : c);
      if (!(there.ports & port(opposite(side)))) return;
      got = there.sent, got_flag |= there.sent_flag, ++arrivals;
    });
    if (arrivals > 1) note(fault, {kSameCycleArrival, c, this->pe(cell)});
    if (go) pop(lane.router, lane.router_flag, 2);
    if (got_flag) push(lane.router, lane.router_flag, 2, got, got_flag);

    // 2. Down to the CE, and the queue.
    const uint8_t to_ce = go && lane.ports & kRampPort ? head_flag : 0;
    uint32_t queued = head;
    uint8_t queued_flag = to_ce;
    if (ramp > 1) {
      queued = lane.down[ramp - 2], queued_flag = queue_room ? lane.down_flag[ramp - 2] : 0;
      moved |= shift(lane.down, lane.down_flag, ramp - 1, queue_room, head, to_ce);
    }
    if (queued_flag) push(lane.queue, lane.queue_flag, p.limit[c], queued, queued_flag);
    if (issue.pops >> c & 1) pop(lane.queue, lane.queue_flag, p.limit[c]);

    // 3. Up from the CE.
    const bool sends = issue.send == c;
    moved |= shift(lane.up, lane.up_flag, ramp, enters, issue.value, sends ? issue.flag : 0);
    if (p.switched && (got_flag || go))
      switches(cell, c, lane, got, got_flag, head, go ? head_flag : 0);
    return moved || got_flag;
  }

  // Moves an elastic pipe; whether any wavelet moved on.
  static bool shift(uint32_t* data, uint8_t* flag, int n, bool leaves, uint32_t value, uint8_t bits) {
    bool moved = false, room = leaves;  // room behind stage k
    for (int k = n - 1; k >= 0; --k) {
      const bool space = !flag[k] || room;
      moved |= flag[k] && room;
      if (room) flag[k] = 0;
      const uint8_t into = k ? (space ? flag[k - 1] : 0) : bits;
      if (into) data[k] = k ? data[k - 1] : value, flag[k] |= into;
      room = space;
    }
    return moved;
  }

  void switches(int cell, int c, L& lane, uint32_t got, uint8_t got_flag, uint32_t head,
                uint8_t left_flag) {
    const uint8_t was = lane.pos_tx;
    if (got_flag) lane.pos_rx = this->advance(cell, c, lane.pos_rx, got, got_flag);
    if (left_flag) lane.pos_tx = this->advance(cell, c, was, head, left_flag);
    this->aim(cell, c, lane);
    if (lane.pos_tx != kTorn || was == kTorn) return;
    for (const Task& task : this->p_.order)
      if (task.teardown && task.key == c && entry(task.id, cell) >= 0)
        this->cores_[cell].active |= 1 << task.id;
  }

  int entry(int task, int cell) const {
    return this->p_.entry[int64_t(task) * this->p_.pes() + this->pe(cell)];
  }

  // Counts down and moves on; whether the router was rewritten.
  bool retire(int cell, Core& core, int t) {
    const Op* code = this->p_.code;
    const int at = core.threads[t].pc;
    const Op& op = code[at];
    const bool starts = t == 0 && op.thread >= 0;
    if (!starts) core.threads[t].left -= std::min(op.rate, core.threads[t].left);
    const bool finished = !starts && core.threads[t].left <= 0;
    if (t > 0) {
      if (finished) core.threads[t].pc = -1;
    } else if (starts || finished) {
      core.threads[0].pc = op.last ? -1 : at + 1;
      if (!op.last) core.threads[0].left = code[at + 1].n, core.threads[0].wait = code[at + 1].launch;
    }
    if (starts)
      core.threads[op.thread + 1].pc = at, core.threads[op.thread + 1].left = op.n, core.threads[op.thread + 1].wait = 0;
    if (!finished) return false;
    core.active |= op.activate;
    core.blocked = (core.blocked | op.block) & ~op.unblock;
    if (!op.position_color || !this->p_.teardown) return false;
    L& lane = this->at(cell, op.position_color - 1);
    lane.pos_rx = lane.pos_tx = uint8_t(op.position);
    this->aim(cell, op.position_color - 1, lane);
    return true;
  }

  bool dispatch(int cell, Fault* fault) {
    const Program& p = this->p_;
    Core& core = this->cores_[cell];
    bool idle = core.threads[0].pc < 0;
    if (!idle && !p.controls) return false;
    uint32_t claimed = 0, pops = 0;
    int begins = -1;
    for (const Task& task : p.order) {
      const int first = entry(task.id, cell);
      if (first < 0) continue;
      const bool free = idle && begins < 0 && !(core.blocked >> task.id & 1);
      if (task.kind == kLocal) {
        if (!free || !(core.active >> task.id & 1)) continue;
        core.active &= ~(1 << task.id), begins = first;
      } else if (task.kind == kData) {
        const L& lane = this->at(cell, task.key);
        if (!free || !lane.queue_flag[0] || lane.queue_flag[0] & kControl) continue;
        pops |= 1u << task.key, core.arg = lane.queue[0], begins = first;
      } else {
        begins = control(cell, task, free, first, begins, &claimed, &pops);
      }
    }
    if (p.controls)
      for (int c = 0; c < p.colors; ++c)
        if (this->at(cell, c).queue_flag[0] & kControl && !(claimed >> c & 1))
          note(fault, {kUnboundControlTask, c, this->pe(cell)});
    for (int c = 0; pops >> c; ++c)
      if (pops >> c & 1) {
        L& lane = this->at(cell, c);
        pop(lane.queue, lane.queue_flag, p.limit[c]);
      }
    if (begins < 0) return false;
    core.threads[0].pc = begins, core.threads[0].left = p.code[begins].n, core.threads[0].wait = p.code[begins].launch;
    return true;
  }

  // Looks for control wavelets that name a task; the first operation of whatever begins.
  int control(int cell, const Task& task, bool free, int first, int begins, uint32_t* claimed,
              uint32_t* pops) {
    for (int c = 0; c < this->p_.colors; ++c) {
      const L& lane = this->at(cell, c);
      const bool names = int(lane.queue[0] >> 16 & 63) == task.key;
      if (!(lane.queue_flag[0] & kControl) || !names) continue;
      *claimed |= 1u << c;
      if (!free) continue;
      *pops |= 1u << c, this->cores_[cell].arg = lane.queue[0], begins = first;
      free = false;
    }
    return begins;
  }

  // Keeps the first fault of a cycle: by kind, color, PE.
  static void note(Fault* fault, Fault seen) {
    *fault = first(*fault, seen);
  }
};

}  // namespace

template <int R, int D>
Outcome run_together(const Program& p, const State& s, int64_t max_cycles, int threads) {
  Machine<R, D> machine(p, s, p.height);
  machine.load(0);
  return machine.run(max_cycles, threads);
}

template <int R, int D>
Outcome run_apart(const Program& p, const State& s, int64_t max_cycles, int threads) {
  std::vector<Outcome> rows(p.height);
  std::atomic<int> next{0};
  run_team(threads, [&](int, Barrier&) {
    Machine<R, D> machine(p, s, 1);
    for (int row; (row = next++) < p.height;) {
      machine.load(row);
      rows[row] = machine.run(max_cycles, 1);
    }
  });
  Outcome out;
  out.cycle = *s.cycle, out.progress = false;
  for (const Outcome& row : rows) {
    out.cycle = std::max(out.cycle, row.cycle);
    out.progress |= row.progress;
    out.fault = first(out.fault, row.fault);
  }
  if (out.fault.kind) out.cycle = INT32_MAX;  // all rows are to stop at the first fault
  for (const Outcome& row : rows)
    if (row.fault.kind) out.cycle = std::min(out.cycle, row.cycle);
  return out;
}

template Outcome run_together<2, 2>(const Program&, const State&, int64_t, int);
template Outcome run_together<2, 8>(const Program&, const State&, int64_t, int);
template Outcome run_together<8, 8>(const Program&, const State&, int64_t, int);
template Outcome run_apart<2, 2>(const Program&, const State&, int64_t, int);
template Outcome run_apart<2, 8>(const Program&, const State&, int64_t, int);
template Outcome run_apart<8, 8>(const Program&, const State&, int64_t, int);

}  // namespace wafer
