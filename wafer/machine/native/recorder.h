// What tools ask of a run: when tasks and operations begin and end, and words over links with time.
//
// There is one list of events for each row of PEs, which one host thread works on: no locks, and
// an order that does not depend on the threads.
#pragma once
#include <atomic>
#include <vector>

#include "program.h"

namespace wafer::csl {

constexpr int kTaskLane = 9;  // of events; operations have their thread's number

struct Event {
  int64_t cycle;
  int32_t cell, pc, task, task_id;
  uint32_t elements;      // of an operation that ends
  uint8_t lane, ends;     // 0 begins, 1 ends
};
static_assert(sizeof(Event) == 32, "as _EVENT in recording.py");

class Recorder {
 public:
  // The words of Recording in recording.py.
  struct Settings {
    int64_t x, y, width, height, from, to, events, windows;
  };

  Recorder(const Settings& settings, int rows, int columns)
      : settings_(settings), columns_(columns), rows_(size_t(rows)),
        links_(size_t(settings.windows * settings.width * settings.height * kPorts)) {}

  void event(const Event& e) {
    if (cycle_ >= stopped_ || e.cycle < settings_.from || e.cycle >= settings_.to) return;
    if (place(e.cell) < 0) return;
    rows_[size_t(e.cell / columns_)].push_back(e);
    count_.fetch_add(1, std::memory_order_relaxed);
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

  std::vector<Event> events() const {
    std::vector<Event> out;
    for (const auto& row : rows_) out.insert(out.end(), row.begin(), row.end());
    return out;
  }
  const std::vector<uint32_t>& links() const { return links_; }
  int64_t cycle() const { return cycle_; }
  int64_t every() const { return every_; }
  int64_t stopped() const { return stopped_ == INT64_MAX ? -1 : stopped_; }
  int64_t count() const { return count_; }

 private:
  int64_t area() const { return settings_.width * settings_.height; }
  int64_t window() const { return (cycle_ - settings_.from) / every_; }
  int64_t place(int cell) const {
    const int64_t x = cell % columns_ - settings_.x, y = cell / columns_ - settings_.y;
    const bool inside = x >= 0 && x < settings_.width && y >= 0 && y < settings_.height;
    return inside ? y * settings_.width + x : -1;
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
  std::vector<std::vector<Event>> rows_;
  std::vector<uint32_t> links_;  // by window, PE and port
  int64_t cycle_ = 0, every_ = 1, stopped_ = INT64_MAX;
  std::atomic<int64_t> count_{0};
};

}  // namespace wafer::csl
