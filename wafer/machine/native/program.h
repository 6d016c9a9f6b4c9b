// What is executed: the tables that machine/setup.py lays out, read once in that order.
#pragma once
#include <cstring>
#include <stdexcept>
#include <vector>

#include "codes.h"

namespace wafer::csl {

constexpr int kColors = 24, kQueues = 8, kThreads = 8, kPorts = 5;
constexpr int kDsdOps = 48, kGates = 5;
constexpr int kGenerators = 8;  // of random numbers
constexpr int kPace = 64;  // parts of a cycle
constexpr int kPad = 64;  // bytes behind the declared memory that read as zero

class Reader {
 public:
  struct Table {
    const void* at;
    int64_t bytes;
  };

  explicit Reader(const Table* first) : next_(first) {}

  template <class Row>
  std::vector<Row> rows() {
    const Row* const from = static_cast<const Row*>(next_->at);
    return {from, from + next_++->bytes / int64_t(sizeof(Row))};
  }

  template <class Row>
  const Row& row() {
    if (next_->bytes != int64_t(sizeof(Row))) throw std::length_error("other than one row");
    return *static_cast<const Row*>(next_++->at);
  }

 private:
  const Table* next_;
};

// What each program has one of.
struct Entries {
  QueueRow queues[2 * kQueues];
  int32_t local_tasks[31], data_tasks[kColors], control_tasks[64];
  int32_t teardown_handlers[kColors], empty_handlers[kQueues], blocked[kGates];
  int32_t start;           // what runs before any task, or -1
  uint32_t active, high;   // tasks; high: that begin before others
  int32_t level;           // of the task's thread, as `Program.level` has it
  int32_t frame, slack;    // registers; slack: those that one function can name, behind the last frame
  int32_t dsrs;            // of each of the three files
  uint32_t channels;       // ids whose words can start a task
};

// Bytes [begin, end) of a variable.
struct Span {
  int32_t begin, end;
};

// The code of some PEs; columns of the tables as in image.py.
struct Program : Entries {
  explicit Program(Reader& in)
      : Entries(in.row<Entries>()), code(in.rows<Instruction>()), memory(in.rows<uint8_t>()),
        variables(in.rows<Span>()), operations(in.rows<OperationRow>()),
        fabrics(in.rows<FabricRow>()), fifos(in.rows<FifoRow>()), shapes(in.rows<ShapeRow>()),
        dsr_loads(in.rows<DsrRow>()) {
    for (const int32_t task : control_tasks) controls |= task >= 0;
  }

  std::vector<Instruction> code;
  std::vector<uint8_t> memory;
  std::vector<Span> variables;  // that operations may not leave, if that is checked
  std::vector<OperationRow> operations;
  std::vector<FabricRow> fabrics;
  std::vector<FifoRow> fifos;
  std::vector<ShapeRow> shapes;
  std::vector<DsrRow> dsr_loads;
  bool controls = false;
};

struct Grid {
  int32_t rows, width, edges;  // edges: sides, W E S N from bit 0 on, on which the wafer ends
  int32_t kinds;               // programs
};

// What the architecture fixes, and what things cost in cycles.
struct Costs {
  int32_t wse3, switch_task, fabric_start;
  int32_t data_task;             // that a data task begins later where the PE did nothing before
  int32_t hop;                   // between neighbouring routers: 1 or 2
  int32_t output_wait;           // that a word stays in an output queue at least
  int32_t width[kDsdOps];        // most elements of an operation per step
  int32_t stride_width[2][8];    // most by the stride of an operand of 2 or 4 bytes, mod 8; 0 and
                                 // 1 limit nothing
  int32_t sum[kDsdOps];          // of an element that waits for the one before: a sum into a pointer
  int32_t pace[3];               // of steps on the fabric, of wide ones with one source and with two
  int32_t banks, bank_bytes;     // of the memory, as two reads of one step see them; 0: none meet
  int32_t input_depth[kQueues], output_depth[kQueues], unbound_depth;
  int32_t streams[kColors];      // 1: from the host, 2: to the host
  int32_t half;                  // format of 16-bit floats: of kHalfFormats in half.h
};

}  // namespace wafer::csl
