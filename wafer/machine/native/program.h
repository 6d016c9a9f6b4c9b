// What is executed, as machine/setup.py lays it out: a stream of int32 that is read once.
#pragma once
#include <cstring>
#include <stdexcept>
#include <vector>

#include "codes.h"

namespace wafer::csl {

constexpr int kColors = 24, kQueues = 8, kThreads = 8, kPorts = 5;
constexpr int kDsdOps = 48, kGates = 5;
constexpr int kPad = 64;  // bytes behind the declared memory that read as zero

class Reader {
 public:
  Reader(const int32_t* at, int64_t count) : at_(at), end_(at + count) {}

  int32_t next() { return *take(1); }

  template <class Row>
  void fill(Row* rows, size_t count) {
    const int32_t* const from = take((count * sizeof(Row) + 3) / 4);
    std::memcpy(static_cast<void*>(rows), from, count * sizeof(Row));
  }

  template <class Row>
  Row row() {
    Row out;
    return fill(&out, 1), out;
  }

  template <class Row>
  std::vector<Row> rows() {
    const int32_t count = next();
    if (count < 0 || size_t(count) > size_t(end_ - at_) * 4) throw std::length_error("rows");
    std::vector<Row> out(static_cast<size_t>(count));
    if (!out.empty()) fill(out.data(), out.size());
    return out;
  }

 private:
  const int32_t* take(size_t words) {
    if (words > size_t(end_ - at_)) throw std::length_error("the stream ends too early");
    const int32_t* const from = at_;
    at_ += words;
    return from;
  }

  const int32_t *at_, *end_;
};

// The code of some PEs; columns of the tables as in image.py.
struct Program {
  explicit Program(Reader& in)
      : code(in.rows<Instruction>()), memory(in.rows<uint8_t>()),
        operations(in.rows<OperationRow>()), fabrics(in.rows<FabricRow>()),
        fifos(in.rows<FifoRow>()), shapes(in.rows<ShapeRow>()), dsr_loads(in.rows<DsrRow>()) {
    in.fill(queues, 2 * kQueues);
    in.fill(local_tasks, 31), in.fill(data_tasks, kColors), in.fill(control_tasks, 64);
    in.fill(teardown_handlers, kColors), in.fill(empty_handlers, kQueues);
    in.fill(blocked, kGates);
    start = in.next(), active = uint32_t(in.next()), high = uint32_t(in.next());
    frame = in.next(), slack = in.next();
    for (const DsrRow& row : dsr_loads) dsrs = row.id + 1 > dsrs ? row.id + 1 : dsrs;
    for (const int32_t task : control_tasks) controls |= task >= 0;
    for (int id = 0; id < kColors; ++id) channels |= uint32_t(data_tasks[id] >= 0) << id;
    if (controls) channels = ~0u;
  }

  std::vector<Instruction> code;
  std::vector<uint8_t> memory;
  std::vector<OperationRow> operations;
  std::vector<FabricRow> fabrics;
  std::vector<FifoRow> fifos;
  std::vector<ShapeRow> shapes;
  std::vector<DsrRow> dsr_loads;
  QueueRow queues[2 * kQueues];
  int32_t local_tasks[31], data_tasks[kColors], control_tasks[64];
  int32_t teardown_handlers[kColors], empty_handlers[kQueues], blocked[kGates];
  int start;  // what runs before any task, or -1
  uint32_t active, high;  // tasks; high: that begin before others
  int frame, slack;  // registers; slack: those that one function can name, behind the last frame
  int dsrs = 0;      // of each of the three files
  uint32_t channels = 0;  // ids whose words can start a task
  bool controls = false;
};

// What the architecture fixes, and what things cost in cycles.
struct Costs {
  int32_t wse3, switch_task, fabric_start;
  int32_t output_wait;           // that a word stays in an output queue at least
  int32_t width[kDsdOps];        // most elements of an operation per step
  int32_t stride_width[8];       // most by the stride of an operand, mod 8; 0 and 1 limit nothing
  int32_t banks, bank_bytes;     // of the memory, as two reads of one step see them; 0: none meet
  int32_t input_depth[kQueues], output_depth[kQueues], unbound_depth;
  int32_t streams[kColors];      // 1: from the host, 2: to the host
};

}  // namespace wafer::csl
