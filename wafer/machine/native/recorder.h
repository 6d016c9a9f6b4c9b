// What tools ask of a run: from when to when tasks and operations run, words over links with time;
// and for the view the state of each PE, the words of each lane, and how routers' ports change.
//
// There is one list of each for each row of PEs, which one host thread works on: no locks, and
// an order that does not depend on the threads.
#pragma once
#include <algorithm>
#include <atomic>
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

// What a PE does from a cycle on, and the instruction that it is at (-1: none).
enum State { kStateIdle, kComputes, kWaitsForWord, kWaitsToSend, kWaitsOtherwise };
struct StateRow {
  int64_t cycle;
  int32_t cell, state, pc, unused;
  bool is(const StateRow& other) const { return state == other.state && pc == other.pc; }
};

// What words do at a lane: a color of a PE, or behind the colors one of its output queues. They rise
// from the CE onto the ramp, and climb from it into the router.
enum Step { kLeaves, kEnters, kQueued, kTaken, kRises, kClimbs, kSteps };
// `count` words do so from a cycle on, one in `stride` cycles; ports: by which they leave.
struct Run {
  int64_t begin;
  int32_t cell;
  uint32_t count, stride;
  uint8_t lane, step, ports, unused;
};
static_assert(sizeof(Run) == 24, "as RUN in recording.py");

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

class Recorder {
 public:
  // The words of Recording in recording.py.
  struct Settings {
    int64_t x, y, width, height, from, to, events, windows, states, words, values;
  };

  Recorder(const Settings& settings, int rows, int columns, int slots)
      : settings_(settings), columns_(columns), slots_(slots), rows_(size_t(rows)),
        running_(size_t(area() * kLanes)), links_(size_t(settings.windows * area() * kPorts)),
        states_(size_t(settings.states ? area() : 0)), routes_(size_t(rows)), runs_(size_t(rows)),
        values_(size_t(rows)), open_(size_t(settings.words ? area() * lanes() * kSteps : 0)) {
    for (int cell = 0; cell < rows * columns; ++cell) {
      const int64_t x = cell % columns - settings.x, y = cell / columns - settings.y;
      const bool inside = x >= 0 && x < settings.width && y >= 0 && y < settings.height;
      places_.push_back(inside ? int32_t(y * settings.width + x) : -1);
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
    count_.fetch_add(cycle >= settings_.from, std::memory_order_relaxed);
    *there = {};
  }

  // Words leave a router by some ports in this cycle.
  void words(int cell, uint32_t ports) {
    const int64_t at = place(cell);
    if (cycle_ < settings_.from || cycle_ >= settings_.to || at < 0) return;
    uint32_t* const counts = &links_[size_t((window() * area() + at) * kPorts)];
    for (; ports; ports &= ports - 1) ++counts[__builtin_ctz(ports)];
  }

  // What a PE does in this cycle, and until the next one in which this is called.
  void state(int cell, int state, int pc) {
    const int64_t at = place(cell);
    if (!settings_.states || at < 0 || cycle_ >= settings_.to) return;
    const StateRow row{std::max(cycle_, settings_.from), cell, state, pc, 0};
    state_count_.fetch_add(keep(&states_[size_t(at)], row), std::memory_order_relaxed);
  }

  void route(int cell, int slot, int rx, int tx, int position) {
    if (!settings_.words || place(cell) < 0 || cycle_ >= settings_.to) return;
    routes_[size_t(cell / columns_)].push_back(
        {cycle_, cell, uint8_t(slot), uint8_t(rx), uint8_t(tx), uint8_t(position)});
  }

  // A word does a step in this cycle. Words at even distances are one run; those before the first
  // recorded cycle count as of the one before it.
  void word(int cell, int lane, Step step, int ports = 0) {
    const int64_t at = place(cell);
    if (at < 0 || cycle_ >= words_until_) return;
    const int64_t cycle = std::max(cycle_, settings_.from - 1);
    Run& run = open_[size_t((at * lanes() + lane) * kSteps + step)];
    const int64_t stride = cycle - run.begin - int64_t(run.stride) * (int64_t(run.count) - 1);
    if (run.count && run.ports == ports && stride <= INT32_MAX &&
        (run.count == 1 || stride == run.stride)) {
      ++run.count, run.stride = uint32_t(stride);
      return;
    }
    if (run.count) runs_[size_t(cell / columns_)].push_back(run);
    run = {cycle, cell, 1, 0, uint8_t(lane), uint8_t(step), uint8_t(ports), 0};
    run_count_.fetch_add(1, std::memory_order_relaxed);
  }

  // A word enters a queue; its value is kept.
  void queued(int cell, int lane, uint32_t word) {
    this->word(cell, lane, kQueued);
    if (place(cell) < 0 || cycle_ < settings_.from || cycle_ >= values_until_) return;
    values_[size_t(cell / columns_)].push_back({cell, lane, word});
    value_count_.fetch_add(1, std::memory_order_relaxed);
  }

  // Between two cycles, while one host thread runs.
  void advance(int64_t cycle) {
    cycle_ = cycle;
    if (run_count_ >= settings_.words) words_until_ = std::min(words_until_, cycle);
    if (value_count_ >= settings_.values) values_until_ = std::min(values_until_, cycle);
    if (settings_.states && state_count_ >= settings_.states) thin();
    if (count_ >= settings_.events && stopped_ == INT64_MAX) stopped_ = cycle;
    while (cycle < settings_.to && cycle >= settings_.from && window() >= settings_.windows) halve();
  }

  // What has not ended lasts until now.
  std::vector<Event> events() const {
    std::vector<Event> out;
    for (const auto& row : rows_) out.insert(out.end(), row.begin(), row.end());
    for (const Event& e : running_)
      if (e.cell >= 0 && cycle_ >= settings_.from)
        out.push_back(until(e, std::min({cycle_, settings_.to, stopped_})));
    return out;
  }
  const std::vector<uint32_t>& links() const { return links_; }
  std::vector<StateRow> states() const { return joined(states_); }  // by PE
  std::vector<Run> runs() const {
    std::vector<Run> out = joined(runs_);
    for (const Run& run : open_)
      if (run.count) out.push_back(run);
    return out;
  }
  std::vector<RouteRow> routes() const { return joined(routes_); }
  std::vector<ValueRow> values() const { return joined(values_); }
  int64_t sampled() const { return sampled_; }
  // Cycles before which words, and their values, are kept.
  int64_t words_until() const { return words_until_; }
  int64_t values_until() const { return values_until_; }
  int64_t cycle() const { return cycle_; }
  int64_t every() const { return every_; }
  int64_t stopped() const { return stopped_ == INT64_MAX ? -1 : stopped_; }

 private:
  int64_t area() const { return settings_.width * settings_.height; }
  int64_t window() const { return (cycle_ - settings_.from) / every_; }
  int64_t lanes() const { return slots_ + kQueues; }
  int64_t place(int cell) const { return places_[size_t(cell)]; }

  template <class Row>
  static std::vector<Row> joined(const std::vector<std::vector<Row>>& rows) {
    std::vector<Row> out;
    for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
    return out;
  }

  // Adds a state to those of a PE; how many more there are. When states are sampled, that of a
  // sampled cycle is the last one up to it.
  int64_t keep(std::vector<StateRow>* rows, StateRow row) const {
    const size_t before = rows->size();
    const int64_t since = row.cycle - settings_.from;
    row.cycle = settings_.from + (since + sampled_ - 1) / sampled_ * sampled_;
    if (!rows->empty() && rows->back().cycle == row.cycle) rows->pop_back();
    if (rows->empty() || !rows->back().is(row)) rows->push_back(row);
    return int64_t(rows->size()) - int64_t(before);
  }

  // Samples states of half as many cycles, until half of the room is free.
  void thin() {
    while (state_count_ > settings_.states / 2 && sampled_ < cycle_) {
      sampled_ *= 2;
      int64_t count = 0;
      for (auto& rows : states_) {
        std::vector<StateRow> kept;
        for (const StateRow& row : rows) keep(&kept, row);
        rows = std::move(kept), count += int64_t(rows.size());
      }
      state_count_ = count;
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

  // Two windows become one, so that a long run takes no more memory than a short one.
  void halve() {
    const size_t size = size_t(area()) * kPorts;
    for (size_t k = 0; k < size_t(settings_.windows); ++k)
      for (size_t i = 0; i < size; ++i) {
        const uint32_t words = links_[k * size + i];
        links_[k * size + i] = 0;
        links_[k / 2 * size + i] += words;
      }
    every_ *= 2;
  }

  const Settings settings_;
  const int64_t columns_, slots_;
  std::vector<std::vector<Event>> rows_;  // that have ended
  std::vector<Event> running_;            // by PE and lane
  std::vector<uint32_t> links_;  // by window, PE and port
  std::vector<std::vector<StateRow>> states_;  // by PE
  std::vector<std::vector<RouteRow>> routes_;
  std::vector<std::vector<Run>> runs_;  // that have ended
  std::vector<std::vector<ValueRow>> values_;
  std::vector<Run> open_;  // by PE, lane and step
  std::vector<int32_t> places_;  // of cells in the rectangle
  int64_t cycle_ = 0, every_ = 1, sampled_ = 1, stopped_ = INT64_MAX;
  int64_t words_until_ = settings_.words ? settings_.to : 0;
  int64_t values_until_ = settings_.values ? settings_.to : 0;
  std::atomic<int64_t> count_{0}, state_count_{0}, run_count_{0}, value_count_{0};
};

}  // namespace wafer::csl
