// The reference engine's program and state as flat arrays, and one cell of the C++ engine.
#pragma once
#include <cstdint>
#include <tuple>
#include <vector>

#include "codes.h"

namespace wafer {

constexpr int kColors = 24, kRamp = 8, kThreads = 9, kTasks = 31, kPorts = 5, kFields = 38;
constexpr uint8_t kValid = 1, kControl = 2, kAdvance = 4;

static_assert(sizeof(Op) == kFields * sizeof(int), "rows are read in place");

enum TaskKind { kLocal, kData, kControlTask };

struct Task {
  int id, kind, key;  // key: color index of data and teardown tasks, id of control tasks
  bool teardown;
};

// Where element i of an operand in memory is.
inline int64_t address(const Operand& o, int i) {
  const int inner = o.inner > 0 ? o.inner : 1;
  return o.inner > 0 ? o.base + int64_t(o.stride) * (i % inner) + int64_t(o.outer) * (i / inner)
                     : o.base + int64_t(o.stride) * i;
}

// Read from the header and buffers that wafer/fabric/engines/native.py passes.
struct Program {
  int height, width, colors, positions, tasks, words, depth, ramp, threads;
  int64_t max_cycles;
  bool switched, filtered, controls, per_hop, swaps, teardown, start, ranked;
  int partner[kColors], limit[kColors];  // of swaps; words of the input queue
  std::vector<Task> order;               // in order of dispatch
  const uint8_t *rx, *tx, *defined;
  const bool *ring, *swap;
  const int32_t *filters, *entry;
  const Op* code;
  int pes() const { return height * width; }
};

// The leaves of FabricState, axes as there.
struct State {
  int32_t* cycle;
  bool* progress;
  int32_t* fault;
  uint32_t* data[4];  // router, up, down, queue
  uint8_t* flag[4];
  uint8_t *pos_rx, *pos_tx;
  int32_t *counter, *pc, *left, *wait, *active, *blocked;
  uint32_t *arg, *mem;
  const uint32_t* before;  // memory at the start; `mem` is written at the end
  int32_t *busy, *end, *links;
};

struct Fault {
  int kind = 0, color = 0, pe = 0;
  std::tuple<int, int, int> key() const { return {kind, color, pe}; }
};

// The one that the reference engine would report: by kind, color, PE.
inline Fault first(const Fault& a, const Fault& b) {
  return !a.kind || (b.kind && b.key() < a.key()) ? b : a;
}

// How a run ended.
struct Outcome {
  int cycle = 0;
  bool progress = true;
  Fault fault;
};

// Runs until nothing changes, a fault, or max_cycles: all rows in step, or rows that exchange
// nothing one after another, each to its own end, with its PEs' state in the cache.
// R: ramp stages (2: exactly two, 8: up to eight); D: most words of a queue.
template <int R, int D>
Outcome run_together(const Program&, const State&, int64_t max_cycles, int threads);
template <int R, int D>
Outcome run_apart(const Program&, const State&, int64_t max_cycles, int threads);

}  // namespace wafer
