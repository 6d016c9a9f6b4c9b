// What tools ask of a run: from when to when tasks and operations run, words over links with time;
// and for the view the state of each PE, the words of each lane, and how routers' ports change.
//
// There is one list of each for each row of PEs, which one host thread works on: no locks, and
// an order that does not depend on the threads.
#pragma once
#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

#include "program.h"

namespace wafer::csl {

constexpr int kTaskLane = 9, kLanes = 10;  // of events; operations have their thread's number

// A task or an operation in the cycles [begin, end).
struct Event {
  int64_t begin, end;
  int32_t cell = -1, lane, pc, task, task_id;
  uint32_t elements;  // that an operation has done
};
static_assert(sizeof(Event) == 40, "as EVENT in recording.py");

// What a PE does from a cycle on, and the instruction that it is at (-1: none). With a path it runs the
// instructions from there on, which take the cycles that they cost: the path's bits behind the highest
// one are its jumps, 1 for one that was taken.
enum State { kStateIdle, kComputes, kWaitsForWord, kWaitsToSend, kWaitsOtherwise };
struct StateRow {
  int64_t cycle;
  int32_t cell, state, pc;
  uint32_t path, turns, stride;  // turns: times that it does so, once in `stride` cycles
  bool is(const StateRow& other) const {
    return state == other.state && pc == other.pc && path == other.path;
  }
};
static_assert(sizeof(StateRow) == 32, "as STATE in recording.py");
// The last one of a PE.
struct OpenState : StateRow {
  int64_t due;    // cycle in which a task that has run ahead goes on with the path
  int32_t calls;  // of the path, without a return
};

// What words do at a lane: a color of a PE, or behind the colors one of its output queues. They rise
// from the CE onto the ramp, and climb from it into the router.
enum Step { kLeaves, kEnters, kQueued, kTaken, kRises, kClimbs, kSteps };
// `count` words do so from a cycle on, one in `stride` cycles. The key's lowest five bits are the ports by
// which they leave, and behind them is (place * lanes + lane) * steps + step.
struct Run {
  uint32_t begin, key, count, stride;
};
// The last run of a lane and step: of one word while the stride is 0, else until before `next`, which
// is a cycle that is over for one word.
struct OpenRun {
  uint32_t begin, next;
  uint16_t stride;
  uint8_t ports, used;
};
// What a color of a PE does, or an end of an output queue, once in `stride` cycles until before `next`, or
// once while the stride is 0. Most do the same for thousands of cycles, and one comparison finds that; when
// it ends, the words of a color join the OpenRuns, and those of a queue's end are a run themselves.
struct OpenLane {
  uint32_t next;
  uint16_t does, stride;
};
// What a color does: the ports by which a word leaves, by none if the router drops it, whether one does
// each step, and how many words the CE takes.
[[gnu::always_inline]] inline uint32_t does(int ports, int leaves, int enters, int queued, int taken,
                                            int rises, int climbs) {
  const int steps = (((taken * 2 + queued) * 2 + climbs) * 2 + enters) * 2 + rises;
  return uint32_t((steps * 2 + leaves) * 32 + ports);
}
constexpr int kBits[] = {5, 7, 9, 10, 6, 8};  // where does() has each step
inline int words_of(int does, int step) {
  const int words = does >> kBits[step];
  return step == kTaken ? words : words & 1;
}

// The ports of a router for a color from a cycle on.
struct RouteRow {
  int64_t cycle;
  int32_t cell;
  uint8_t slot, rx, tx, position;
};
struct ValueRow {
  int32_t cell, lane;
  uint32_t word;
};

// A count by rows of PEs: no two host threads write the same one.
class Count {
 public:
  explicit Count(int rows) : rows_(size_t(rows)) {}
  int64_t& operator[](int row) { return rows_[size_t(row)]; }
  int64_t sum() const { return std::accumulate(rows_.begin(), rows_.end(), int64_t(0)); }

 private:
  std::vector<int64_t> rows_;
};

class Recorder {
 public:
  static constexpr int kLongestPath = 30;  // jumps

  // The words of Recording in recording.py.
  struct Settings {
    int64_t x, y, width, height, from, to, events, windows, states, words, values;
  };

  // links: words that have left by each port of each PE so far.
  Recorder(const Settings& settings, int rows, int columns, int slots, const uint32_t* links)
      : settings_(settings), columns_(columns), slots_(slots), links_(links), rows_(size_t(rows)),
        running_(size_t(area() * kLanes)), windows_(size_t(settings.windows)),
        states_(size_t(settings.states ? area() : 0)), routes_(size_t(rows)), runs_(size_t(rows)),
        values_(size_t(rows)), last_(states_.size()), stays_(size_t(rows * columns)),
        open_(size_t(settings.words ? area() * slots * kSteps : 0), {0, UINT32_MAX, 0, 0, 0}),
        early_(size_t(settings.words && settings.from ? area() * lanes() * kSteps : 0)),
        open_lanes_(settings.words ? size_t(area() * each()) : 0, {UINT32_MAX, 0, 0}),
        lane_begins_(open_lanes_.size()), event_count_(rows), state_count_(rows), run_count_(rows),
        value_count_(rows) {
    for (int cell = 0; cell < rows * columns; ++cell) {
      const int64_t x = cell % columns - settings.x, y = cell / columns - settings.y;
      const bool inside = x >= 0 && x < settings.width && y >= 0 && y < settings.height;
      places_.push_back(inside ? int32_t(y * settings.width + x) : -1);
      lanes_.push_back(inside && words_until_ ? &open_lanes_[size_t(place(cell) * each())] : nullptr);
    }
  }

  // A task or an operation begins; it is kept from its end on.
  void begin(const Event& e) {
    if (Event* const there = running(e.cell, e.lane, e.begin)) *there = e;
  }

  void end(int cell, int lane, int64_t cycle, uint32_t elements) {
    Event* const there = running(cell, lane, cycle);
    if (!there) return;
    there->elements = elements;
    if (cycle >= settings_.from) rows_[size_t(cell / columns_)].push_back(until(*there, cycle));
    event_count_[cell / columns_] += cycle >= settings_.from;
    *there = {};
  }

  // What a PE does from a cycle on, this one or a later one, until the next row of it.
  void state(int cell, int64_t cycle, int state, int pc, uint32_t path = 0) {
    if (path || stays_[size_t(cell)] != stay(state, pc)) begin_state(cell, cycle, state, pc, path);
  }

  // The last state of a PE; none if it is not recorded.
  OpenState* last(int cell) {
    const int64_t at = place(cell);
    return at < 0 || !settings_.states ? nullptr : &last_[size_t(at)];
  }

  // A task goes on with an instruction of which some cycles are over. A path begins, unless the task has
  // waited for what was due, and microthreads have not held it up.
  void resume(int cell, int64_t cycle, int64_t over, int pc) {
    if (last(cell)->due != cycle) state(cell, cycle - over, kComputes, pc, 1);
  }

  // A jump on the path of a PE; what follows is `next`, in `cycle`.
  void jump(OpenState* open, int64_t cycle, bool taken, int next) {
    open->path = open->path << 1 | uint32_t(taken);
    if (open->path >> kLongestPath) state(open->cell, cycle, kComputes, next, 1);
  }

  void route(int cell, int slot, int rx, int tx, int position) {
    if (!settings_.words || place(cell) < 0 || cycle_ >= settings_.to) return;
    routes_[size_t(cell / columns_)].push_back(
        {cycle_, cell, uint8_t(slot), uint8_t(rx), uint8_t(tx), uint8_t(position)});
  }

  // A word of a color does a step in this cycle, besides those that `go_on` has. Words at even distances are
  // one run; those before the first recorded cycle count as of the one before it.
  void word(int cell, int slot, Step step) {
    if (!lanes_of(cell)) return;
    if (words_of(lanes_of(cell)[slot].does, step)) close(cell, slot);
    step_of(cell, run_of(cell, slot, step), uint32_t(cycle_), 0);
  }

  // A word enters an output queue, or leaves it.
  void queue_word(int cell, int queue, bool leaves) {
    OpenLane* const lanes = lanes_of(cell);
    if (lanes) go_on(lanes, cell, slots_ + 2 * queue + leaves, 1, uint32_t(cycle_));
  }

  // What the lanes of a PE did last; none if its words are not recorded in this cycle.
  OpenLane* lanes_of(int cell) { return lanes_[size_t(cell)]; }

  // What a lane of a PE does in this `cycle`, which callers hold in a register; lanes: what they did last.
  [[gnu::always_inline]] void go_on(OpenLane* lanes, int cell, int lane, uint32_t does, uint32_t cycle) {
    OpenLane& open = lanes[lane];
    if (open.next == cycle && open.does == does) open.next += open.stride;
    else if (does) begin_lane(cell, lane, does);
  }

  // The value of a word that enters a queue.
  void value(int cell, int lane, uint32_t word) {
    if (cycle_ < values_until_) keep_value(cell, lane, word);
  }

  // Between two cycles, while one host thread runs.
  void advance(int64_t cycle) {
    const bool was = inside(), words = cycle_ < words_until_;
    const int64_t ends = was ? window() : -1;
    cycle_ = cycle;
    if (!was && inside()) count(&before_);
    if (was && (!inside() || window() != ends)) count(&windows_[size_t(ends)]);
    if (run_count_.sum() >= settings_.words) words_until_ = std::min(words_until_, cycle);
    if (value_count_.sum() >= settings_.values) values_until_ = std::min(values_until_, cycle);
    if (settings_.states && state_count_.sum() + area() >= settings_.states) thin();
    if (event_count_.sum() >= settings_.events && stopped_ == INT64_MAX) stopped_ = cycle;
    if (words && cycle >= words_until_) std::fill(lanes_.begin(), lanes_.end(), nullptr);
    while (inside() && window() >= settings_.windows) halve();
  }

  // What has not ended lasts until `now`.
  std::vector<Event> events(int64_t now) const {
    std::vector<Event> out = joined<Event>(rows_);
    for (const Event& e : running_)
      if (e.cell >= 0 && now > settings_.from)
        out.push_back(until(e, std::min({now, settings_.to, stopped_})));
    return out;
  }
  std::vector<uint32_t> links() {  // by window, PE and port
    const size_t size = size_t(area()) * kPorts;
    const std::vector<uint32_t> zeros(size);
    if (inside()) count(&windows_[size_t(window())]);
    std::vector<uint32_t> out(windows_.size() * size);
    const uint32_t* before = before_.empty() ? zeros.data() : before_.data();
    for (size_t k = 0; k < windows_.size(); ++k) {
      const uint32_t* const after = windows_[k].empty() ? before : windows_[k].data();
      std::transform(after, after + size, before, &out[k * size], std::minus<>());
      before = after;
    }
    return out;
  }
  std::vector<StateRow> states() const {  // by PE
    std::vector<StateRow> out;
    for (size_t at = 0; at < states_.size(); ++at) {
      out.insert(out.end(), states_[at].begin(), states_[at].end());
      if (last_[at].turns) out.push_back(last_[at]);
    }
    return out;
  }
  std::vector<Run> runs() {
    std::vector<Run> last;
    for (int cell = 0; settings_.words && cell < int(places_.size()); ++cell) {
      if (place(cell) < 0) continue;
      for (int slot = 0; slot < slots_; ++slot) close(cell, slot);
      for (size_t k = run_of(cell, 0, 0), end = run_of(cell, slots_, 0); k < end; ++k)
        if (open_[k].used) last.push_back(run(cell, k));
      for (int lane = slots_; lane < each(); ++lane)
        if (open_lanes_[lane_of(cell, lane)].does) last.push_back(queue_run(cell, lane));
    }
    std::vector<Run> out = joined<Run>(runs_);
    out.insert(out.end(), last.begin(), last.end());
    for (size_t k = 0; k < early_.size(); ++k)
      if (early_[k]) out.push_back({uint32_t(settings_.from - 1), uint32_t(k) << 5, early_[k], 0});
    return out;
  }
  std::vector<RouteRow> routes() const { return joined<RouteRow>(routes_); }
  std::vector<ValueRow> values() const { return joined<ValueRow>(values_); }
  int64_t sampled_every() const { return sampled_; }
  // Cycles before which words, and their values, are kept.
  int64_t words_until() const { return words_until_; }
  int64_t values_until() const { return values_until_; }
  int64_t cycle() const { return cycle_; }
  int64_t every() const { return every_; }
  int64_t stopped() const { return stopped_ == INT64_MAX ? -1 : stopped_; }

 private:
  int64_t area() const { return settings_.width * settings_.height; }
  bool inside() const { return cycle_ >= settings_.from && cycle_ < settings_.to; }
  int64_t window() const { return (cycle_ - settings_.from) / every_; }
  int64_t lanes() const { return slots_ + kQueues; }
  int64_t each() const { return slots_ + 2 * kQueues; }  // OpenLanes of a PE
  int64_t place(int cell) const { return places_[size_t(cell)]; }

  template <class Row>
  using Rows = std::vector<std::deque<Row>>;  // by row of PEs; what is there is never moved

  template <class Row, class Lists>
  static std::vector<Row> joined(const Lists& lists) {
    std::vector<Row> out;
    for (const auto& list : lists) out.insert(out.end(), list.begin(), list.end());
    return out;
  }

  size_t lane_of(int cell, int lane) const { return size_t(place(cell) * each() + lane); }
  size_t run_of(int cell, int slot, int step) const {
    return size_t((place(cell) * slots_ + slot) * kSteps + step);
  }
  // Of a run of open_, and of an end of a queue: the key without its ports.
  size_t key_of(int cell, size_t k) const { return k + size_t(place(cell) * kQueues * kSteps); }
  size_t queue_key(int cell, int lane) const {
    const int queue = (lane - slots_) / 2, step = (lane - slots_) % 2 ? kTaken : kQueued;
    return size_t((place(cell) * lanes() + slots_ + queue) * kSteps + step);
  }
  template <class Open>
  static Run run(size_t key, const Open& open, uint32_t begin, int ports) {
    const uint32_t words = open.stride ? (open.next - begin) / open.stride : 1;
    return {begin, uint32_t(key) << 5 | uint32_t(ports), words, open.stride};
  }
  Run run(int cell, size_t k) const {
    return run(key_of(cell, k), open_[k], open_[k].begin, open_[k].ports);
  }
  Run queue_run(int cell, int lane) const {
    const size_t k = lane_of(cell, lane);
    return run(queue_key(cell, lane), open_lanes_[k], lane_begins_[k], 0);
  }

  [[gnu::always_inline]] void step_of(int cell, size_t k, uint32_t cycle, int ports) {
    OpenRun& open = open_[k];
    if (open.next == cycle && open.ports == ports) open.next += open.stride;
    else begin_run(cell, k, cycle, ports);
  }

  // A word that does not go on with the last run of its lane and step.
  [[gnu::noinline]] void begin_run(int cell, size_t k, uint32_t cycle, int ports) {
    OpenRun& open = open_[k];
    if (cycle_ < settings_.from) return void(++early_[key_of(cell, k)]);
    const uint32_t since = cycle - open.begin;
    if (open.used && !open.stride && open.ports == ports && since && since <= UINT16_MAX) {
      open.stride = uint16_t(since), open.next = cycle + since;
      return;
    }
    if (open.used) runs_[size_t(cell / columns_)].push_back(run(cell, k));
    open = {cycle, cycle - 1, 0, uint8_t(ports), 1};
    ++run_count_[cell / columns_];
  }

  // What a lane does that does not go on with what it did last.
  [[gnu::noinline]] void begin_lane(int cell, int lane, uint32_t does) {
    const size_t k = lane_of(cell, lane);
    OpenLane& open = open_lanes_[k];
    if (lane >= slots_ && cycle_ < settings_.from) return void(++early_[queue_key(cell, lane)]);
    const uint32_t cycle = uint32_t(cycle_), since = cycle - lane_begins_[k];
    if (open.does == does && !open.stride && since && since <= UINT16_MAX) {
      open.stride = uint16_t(since), open.next = cycle + since;
      return;
    }
    if (lane < slots_) {
      close(cell, lane);
    } else {
      if (open.does) runs_[size_t(cell / columns_)].push_back(queue_run(cell, lane));
      ++run_count_[cell / columns_];
    }
    open = {cycle - 1, uint16_t(does), 0}, lane_begins_[k] = cycle;
    if (cycle_ < settings_.from) close(cell, lane);
  }

  // Ends what a color did last: its words are in the runs of its steps.
  void close(int cell, int slot) {
    OpenLane& open = open_lanes_[lane_of(cell, slot)];
    for (int step = 0; open.does && step < kSteps; ++step)
      if (const int words = words_of(open.does, step))
        join(cell, slot, step, open, words, step == kLeaves ? open.does & 31 : 0);
    open = {UINT32_MAX, 0, 0};
  }

  // Words of a color, so many in a cycle, join the run of a step.
  void join(int cell, int slot, int step, const OpenLane& lane, int words, int ports) {
    const size_t k = run_of(cell, slot, step);
    const uint32_t begin = lane_begins_[lane_of(cell, slot)];
    OpenRun& run = open_[k];
    const uint32_t stride = std::max<uint32_t>(lane.stride, 1), end = lane.stride ? lane.next : begin + 1;
    for (uint32_t cycle = begin; cycle != end; cycle += stride) {
      for (int word = 0; word < words; ++word) step_of(cell, k, cycle, ports);
      if (words > 1 || cycle + stride == end) continue;
      // The rest at once, if the run has just begun, or has this stride.
      if (!run.stride) run.stride = lane.stride;
      if (run.stride == stride) return void(run.next = end);
    }
  }

  [[gnu::noinline]] void keep_value(int cell, int lane, uint32_t word) {
    if (place(cell) < 0 || cycle_ < settings_.from) return;
    values_[size_t(cell / columns_)].push_back({cell, lane, word});
    ++value_count_[cell / columns_];
  }

  // As stays_ has it.
  static uint64_t stay(int state, int pc) { return uint64_t(uint32_t(pc)) << 32 | uint64_t(state + 1); }

  [[gnu::noinline]] void begin_state(int cell, int64_t cycle, int state, int pc, uint32_t path) {
    stays_[size_t(cell)] = path ? 0 : stay(state, pc);
    if (!settings_.states || place(cell) < 0) return;
    const size_t at = size_t(place(cell));
    const StateRow row{cycle, cell, state, pc, path, 1, 0};
    OpenState& open = last_[at];
    if (open.turns && sampled(open) != sampled(row)) keep(&states_[at], open);
    open = {row, -1, 0};
  }

  // Keeps a row that is over. One that does the same as the row before, at an even distance, joins it.
  void keep(std::vector<StateRow>* rows, const StateRow& row) {
    StateRow* const before = rows->empty() ? nullptr : &rows->back();
    const int64_t since = before ? row.cycle - before->cycle : 0;
    if (row.path && before && before->is(row) && since <= UINT32_MAX &&
        (before->turns == 1 || since == int64_t(before->turns) * before->stride)) {
      before->stride = uint32_t(since / before->turns++);
      return;
    }
    rows->push_back(row);
    ++state_count_[row.cell / columns_];
  }

  // The sampled cycle that a state belongs to: the first one that is not before its own.
  int64_t sampled(const StateRow& row) const {
    const int64_t since = std::clamp(row.cycle, settings_.from, settings_.to) - settings_.from;
    return (since + sampled_ - 1) & -sampled_;
  }

  // Samples states of half as many cycles, until half of the room is free. Of the states of a sampled
  // cycle the last one stays.
  void thin() {
    while (state_count_.sum() + area() > settings_.states / 2 && sampled_ < cycle_) {
      sampled_ *= 2;
      for (size_t at = 0; at < states_.size(); ++at) {
        std::vector<StateRow>& rows = states_[at];
        size_t kept = 0;
        for (const StateRow& row : rows) {
          if (kept && sampled(rows[kept - 1]) == sampled(row)) --kept;
          if (!kept || row.path || !rows[kept - 1].is(row)) rows[kept++] = row;
        }
        if (kept && sampled(rows[kept - 1]) == sampled(last_[at])) --kept;
        state_count_[int(settings_.y + int64_t(at) / settings_.width)] -= int64_t(rows.size() - kept);
        rows.resize(kept);
      }
    }
  }

  // What runs in a lane of a PE; none if that is not recorded in this cycle.
  Event* running(int cell, int lane, int64_t cycle) {
    const int64_t at = cycle_ >= stopped_ || cycle >= settings_.to ? -1 : place(cell);
    return at < 0 ? nullptr : &running_[size_t(at * kLanes + lane)];
  }
  Event until(Event e, int64_t cycle) const {
    e.begin = std::max(e.begin, settings_.from), e.end = std::max(e.begin, cycle);
    return e;
  }

  // Words over links until now, by PE and port; nothing is done if they are those that were kept last.
  void count(std::vector<uint32_t>* out) {
    const int64_t size = settings_.width * kPorts;
    const auto row = [&](int64_t y) {
      return links_ + ((settings_.y + y) * columns_ + settings_.x) * kPorts;
    };
    bool same = latest_;
    for (int64_t y = 0; same && y < settings_.height; ++y)
      same = std::equal(row(y), row(y) + size, latest_ + y * size);
    if (same) return;
    out->resize(size_t(settings_.height * size));
    for (int64_t y = 0; y < settings_.height; ++y) std::copy_n(row(y), size, out->data() + y * size);
    latest_ = out->data();
  }

  // Two windows become one, so that a long run takes no more memory than a short one.
  void halve() {
    const size_t size = windows_.size(), half = (size + 1) / 2;
    for (size_t k = 0; k < half; ++k) {
      const size_t last = std::min(2 * k + 1, size - 1);
      std::swap(windows_[k], windows_[windows_[last].empty() ? 2 * k : last]);
    }
    for (size_t k = half; k < size; ++k) windows_[k].clear();
    every_ *= 2;
  }

  const Settings settings_;
  const int columns_, slots_;
  const uint32_t* const links_;
  Rows<Event> rows_;  // that have ended
  std::vector<Event> running_;            // by PE and lane
  // Words over links, by PE and port, until the end of each window (none: no more than before it), and
  // those of before the first recorded cycle.
  std::vector<std::vector<uint32_t>> windows_;
  std::vector<uint32_t> before_;
  const uint32_t* latest_ = nullptr;  // of those that were kept last
  std::vector<std::vector<StateRow>> states_;  // by PE
  Rows<RouteRow> routes_;
  Rows<Run> runs_;  // that have ended
  Rows<ValueRow> values_;
  std::vector<OpenState> last_;  // by PE; those in states_ are over
  std::vector<uint64_t> stays_;  // by PE, all of them: the last state and instruction; 0: a path
  std::vector<OpenRun> open_;     // by PE, color and step
  std::vector<uint32_t> early_;   // by PE, lane and step: words of before the first recorded cycle
  std::vector<OpenLane> open_lanes_;  // by PE; of its colors, then of both ends of its output queues
  std::vector<uint32_t> lane_begins_;  // of those
  std::vector<OpenLane*> lanes_;  // of all PEs; none: their words are not recorded in this cycle
  std::vector<int32_t> places_;  // of cells in the rectangle
  int64_t cycle_ = 0, every_ = 1, sampled_ = 1, stopped_ = INT64_MAX;
  int64_t words_until_ = settings_.words ? settings_.to : 0;
  int64_t values_until_ = settings_.values ? settings_.to : 0;
  Count event_count_, state_count_, run_count_, value_count_;
};

}  // namespace wafer::csl
