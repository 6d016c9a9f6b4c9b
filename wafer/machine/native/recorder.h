// What tools ask of a run: from when to when tasks and operations run, and words over links with time.
//
// There is one list of events for each row of PEs, which one host thread works on: no locks, and
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

class Recorder {
 public:
  // The words of Recording in recording.py.
  struct Settings {
    int64_t x, y, width, height, from, to, events, windows;
  };

  Recorder(const Settings& settings, int rows, int columns)
      : settings_(settings), columns_(columns), rows_(size_t(rows)),
        running_(size_t(area() * kLanes)), links_(size_t(settings.windows * area() * kPorts)) {}

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

  // Between two cycles, while one host thread runs.
  void advance(int64_t cycle) {
    cycle_ = cycle;
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
  int64_t cycle() const { return cycle_; }
  int64_t every() const { return every_; }
  int64_t stopped() const { return stopped_ == INT64_MAX ? -1 : stopped_; }

 private:
  int64_t area() const { return settings_.width * settings_.height; }
  int64_t window() const { return (cycle_ - settings_.from) / every_; }
  int64_t place(int cell) const {
    const int64_t x = cell % columns_ - settings_.x, y = cell / columns_ - settings_.y;
    const bool inside = x >= 0 && x < settings_.width && y >= 0 && y < settings_.height;
    return inside ? y * settings_.width + x : -1;
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
  const int64_t columns_;
  std::vector<std::vector<Event>> rows_;  // that have ended
  std::vector<Event> running_;            // by PE and lane
  std::vector<uint32_t> links_;  // by window, PE and port
  int64_t cycle_ = 0, every_ = 1, stopped_ = INT64_MAX;
  std::atomic<int64_t> count_{0};
};

}  // namespace wafer::csl
