// The state of a PE, and of all PEs.
#pragma once
#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "recorder.h"

namespace wafer::csl {

// Sides in the order of the colour register's bits; what leaves by one arrives from the other of
// its pair.
constexpr uint8_t kRampPort = 16;
inline int opposite(int side) { return side ^ 1; }  // west, east, south, north

constexpr uint8_t kValid = 1, kControl = 2, kAdvance = 4;  // of a wavelet

// Fields of the colour register (CONFIG in codes.py).
constexpr int kSwapX = 1 << 10, kSwapY = 1 << 11, kTorn = 1 << 14;
enum PopMode { kNoPop, kAlwaysPop, kPopOnAdvance, kPopOnAdvanceNop };

struct FilterState {
  int32_t row = -1, counter = 0, limit = 0;
  bool on = false, second = false;  // second: the sparse counter has reached its first limit
};

// One colour at one PE: the router's FIFO, the ramp's stages, and the CE's queue.
struct alignas(32) Lane {
  uint32_t router[2], up[2], down, sent;
  uint8_t router_flag[2], up_flag[2], down_flag, sent_flag;
  uint8_t head, size, controls, depth;  // of the queue; controls: a bit per place
  uint8_t popped;                       // by the CE in this cycle
  uint8_t pos_rx, pos_tx, rx, tx;       // positions for what enters and leaves, and their ports
  uint8_t ports;                        // by which the head leaves in this cycle
  uint8_t from;                         // sides from which words arrive; higher: of the partner
  bool go, torn_rx, torn_tx;
  uint16_t color, switches;  // registers
  FilterState filter;
  uint32_t words[kQueues];  // the queue

  uint32_t front() const { return words[head]; }
  bool front_is_control() const { return controls >> head & 1; }
};
static_assert(sizeof(Lane) == 96, "a line and a half of the caches");

// An operand as an operation goes over it.
struct Stream {
  Operand kind = Operand::kNone;
  uint8_t width = 0;
  bool indexed = false;            // the wavelets' index is an offset to the address
  int16_t dsr = -1, row = -1;      // file << 8 | id; of fabrics, fifos or shapes
  int32_t base = 0, step = 0;      // bytes; of SCALAR: the value; of a FABRIC source: its slot
};

struct Effect {
  int8_t action, target;
};

struct Operation {
  int32_t pc;                // of code
  int32_t task, task_id;     // that began it
  uint32_t length, done, carry;
  uint32_t row;              // elements of a row: a step ends with it
  int32_t index;             // of its wavelets
  DsdOp op;
  uint8_t wide;              // elements per step
  uint8_t turns;             // cycles of a step
  int8_t turn;               // of the running one, those that are over; below 0: before the first
  uint8_t clears;            // sources in memory that are zeroed: 1 src0, 2 src1
  bool indexed;              // an operand's address depends on the wavelets of 16 bits
  bool control_ends;
  bool plain;                // as is_plain says
  Effect effects[5], on_control;  // its own, and one of each operand that is a DSR
  Stream dest, src0, src1, scalar;
};

struct OutputQueue {
  uint32_t data[kQueues];
  int8_t slot[kQueues];  // of the colour; -1: that of the queue's register when it leaves
  uint8_t flag[kQueues];
  uint8_t head = 0, size = 0;
};

struct Dsr {
  uint64_t value;
  int32_t row = -1;  // of dsr_loads
};

struct Fifo {
  int32_t head = 0, used = 0;                // in 16-bit words
  int32_t read_length = 0, write_length = 0;  // 0: that of the other operands
  bool starved = false, choked = false;       // an operation found it empty, or full
};

enum class Main : uint8_t { kIdle, kRunning, kOperating, kReceiving, kSending };
enum class Task : int32_t { kLocal, kData, kControl, kTeardown, kEmpty, kFunction, kStart };

struct Frame {
  int32_t pc, base;
};

constexpr int kMainThread = kThreads;
constexpr uint32_t kMicrothreads = (1u << kThreads) - 1;

// What an operation needs before each step.
struct Wait {
  uint32_t needs;  // slots with a word
  uint8_t fills;   // output queues with room
  uint8_t rank;    // the highest goes first
};

struct alignas(64) Core {
  const Program* code = nullptr;  // none: no program
  int32_t program = -1, cell = 0;
  Lane* lanes = nullptr;            // by slot
  Operation* operations = nullptr;  // the task's own, then the microthreads'
  uint8_t* memory = nullptr;
  Main main = Main::kIdle;
  uint8_t encoded = 0;      // input queues that the running program has bound
  bool paid = false;        // for the visible instruction at pc
  bool busy = false;        // its task's instructions take the cycles until it wakes
  uint16_t threads = 0;     // that run an operation; bit kMainThread: the task's own
  uint16_t with_fifos = 0;  // of them, those whose operation has a FIFO
  uint8_t sending = 0;      // output queues with words
  uint8_t full = 0;         // output queues without room
  uint32_t queued = 0;      // slots with words for the CE
  uint32_t popped = 0;      // slots that the CE took a word from in this cycle
  uint32_t feeding = 0;     // slots with words of the host to come in
  uint32_t active = 0, blocked[kGates] = {}, torn = 0;
  uint8_t flushed = 0, flushing = 0;  // output queues: found empty, and to be found so
  bool called = false;                // the host's launches wait
  bool commanded = false;             // the host's command stream waits for NEXT_COMMAND
  Wait waits[kThreads + 1];           // of the threads' operations; the main thread's included
  uint16_t thread_words[kQueues] = {};  // of microthreads: bit 8 medium, bit 9 high priority
  int8_t in_slot[kQueues], out_slot[kQueues];  // colours bound, as places in the list of lanes
  Task task = Task::kLocal;
  uint8_t last_task = 31;  // that was dispatched
  int32_t task_id = 0, pc = 0, base = 0, depth = 0;
  int64_t debt = 0;  // cycles charged and not yet waited out
  int64_t* registers = nullptr;
  OutputQueue* output = nullptr;
  Dsr* dsrs = nullptr;
  Fifo* fifos = nullptr;
  int64_t stamp = 0, stamp_from = -1;  // the counter, and since when it runs
  uint32_t random = 0xDEADBEEF;
};

struct Launch {
  int32_t entry;
  std::vector<int64_t> words;
};

// What a PE exchanges with the host.
struct Host {
  std::deque<Launch> launches;
  std::vector<std::deque<uint32_t>> in, out;  // by slot
  std::string line;                           // printed so far
};

struct Print {
  int64_t cycle;
  int32_t cell;
  std::string text;
};

enum FaultKind {
  kNoFault, kSameCycleArrival, kOffWafer, kThreadInUse, kOutsideMemory, kUnboundControl, kMessage,
  kDivision, kTooDeep, kNoColor, kNoConfig, kDsrNotLoaded, kNoThread, kBadCode, kWrongOperand,
  kOverrun, kOverread
};

// Bytes [begin, end) of a variable.
struct Span {
  int32_t begin, end;
};

struct Fault {
  int32_t kind = kNoFault, cell = 0, task = 0, task_id = 0, pc = -1;
  int64_t detail = 0;
};

// A word on its way out of the CE, in one register: written in pieces and read whole it would stall.
class Sent {
 public:
  Sent() = default;  // nothing
  // slot: of the colour; -1: that of the queue's register.
  Sent(int queue, int slot, uint8_t flag, uint32_t word)
      : bits_(uint64_t(word) << 32 | uint64_t(uint8_t(queue)) << 16 | uint64_t(uint8_t(slot)) << 8 |
              flag) {}
  explicit operator bool() const { return bits_; }  // every word has a flag
  uint32_t word() const { return uint32_t(bits_ >> 32); }
  int queue() const { return int8_t(bits_ >> 16); }
  int slot() const { return int8_t(bits_ >> 8); }
  uint8_t flag() const { return uint8_t(bits_); }
  Sent to(int slot) const { return {queue(), slot, flag(), word()}; }

 private:
  uint64_t bits_ = 0;
};

// What the operations of one instruction have done; reads and writes of the memory in 16-bit words.
struct Work {
  int64_t operations, elements, reads, writes;
};

// What one host thread gathers in its rows.
struct Worker {
  Sent fresh;  // a word sent in this cycle while all output queues were empty
  Fault fault;
  bool moved = false;
  int own_from = 0, own_to = 0;  // cells that no other thread sends to in a cycle
  int64_t answered = 0;  // launches returned, commands unblocked
  std::vector<Print> prints;
  std::vector<std::vector<int64_t>> profile;  // cycles by program and instruction
  std::vector<std::vector<Work>> work;        // of operations, by the same

  // The first PE's is reported, so that it does not depend on the threads.
  void note(const Fault& seen) {
    if (!fault.kind || seen.cell < fault.cell) fault = seen;
  }
};

// Where words enter and leave a colour's router by a side that leads out of the rectangle.
struct Port {
  int cell, slot, side;
  bool takes = false;  // what leaves is kept
  std::deque<std::pair<uint32_t, uint8_t>> in;  // words with their flags
  std::pair<uint32_t, uint8_t> entering;        // in this cycle
  std::vector<uint32_t> out;
};

constexpr int64_t kNever = INT64_MAX;

// All PEs, and what they run.
struct Wafer {
  // From a stream, as far as its programs; load() in machine.cc reads the rest.
  explicit Wafer(Reader& in)
      : rows(positive(in)), width(positive(in)), edges(uint8_t(in.next())), costs(in.row<Costs>()),
        colors(in.rows<int32_t>()), filters(in.rows<FilterRow>()), programs(programs_of(in)),
        slots(int(colors.size())), lanes(size_t(cells()) * slots), live(cells()),
        incoming(cells()), visit(cells(), 1), next(cells()), sides(cells()),
        links(size_t(cells()) * kPorts), cores(cells()), hosts(cells()), wake(cells(), kNever),
        offset{-1, 1, width, -width}, reach{-slots, slots, width * slots, -width * slots} {
    std::fill_n(slot, kColors, -1);
    for (int k = 0; k < slots; ++k) slot[colors[k]] = int8_t(k);
    for (int k = 0; k < slots; ++k) partner.push_back(slot[colors[k] ^ 1]);
    for (int cell = 0; cell < cells(); ++cell) {
      const int x = cell % width, y = cell / width;
      sides[cell] = uint8_t((x > 0) | (x + 1 < width) << 1 | (y + 1 < rows) << 2 | (y > 0) << 3);
    }
  }

  Wafer(const Wafer&) = delete;  // cores point into it

  int cells() const { return rows * width; }
  Lane& at(int cell, int slot) { return lanes[size_t(cell) * slots + slot]; }
  const Lane& at(int cell, int slot) const { return lanes[size_t(cell) * slots + slot]; }

  const int rows, width;
  const uint8_t edges;  // sides, W E S N from bit 0 on, on which the wafer ends with these PEs
  const Costs costs;
  const std::vector<int32_t> colors;  // in use, ascending
  const std::vector<FilterRow> filters;
  const std::vector<Program> programs;
  const int slots;
  int8_t slot[kColors];  // of each colour, or -1
  uint32_t to_host = 0;  // slots
  std::vector<int8_t> partner;
  bool checks_bounds = false;
  std::vector<std::vector<Span>> variables;  // by program, if bounds are checked

  Arena<Lane> lanes;
  std::vector<uint32_t> live, incoming;     // slots with words; to which words come
  std::vector<uint8_t> visit, next, sides;  // sides: ports with a neighbour
  std::vector<uint32_t> links;
  std::vector<std::unique_ptr<Port>> ports;
  Arena<Core> cores;
  std::vector<std::unique_ptr<Host>> hosts;
  std::vector<int64_t> wake;              // when the task's own thread has paid
  std::unique_ptr<Recorder> recorder;     // none: nothing is recorded
  const int offset[4], reach[4];  // to the neighbour by a side: of cells, of their lanes
  int64_t cycle = 0;

  // What the cores point into.
  Arena<uint8_t> memory;
  Arena<int64_t> registers;
  Arena<Operation> operations;
  Arena<OutputQueue> output;
  std::vector<Dsr> dsrs;
  std::vector<Fifo> fifos;
  size_t threads = 1, queues = 0;    // operations and output queues of each PE
  std::unique_ptr<Frame[]> frames;  // calls of PEs, by depth: what no call reaches is not touched

 private:
  static int positive(Reader& in) {
    const int32_t count = in.next();
    if (count < 1) throw std::length_error("no PEs");
    return count;
  }
  static std::vector<Program> programs_of(Reader& in) {
    std::vector<Program> out;
    for (int count = in.next(); count > 0; --count) out.emplace_back(in);
    return out;
  }
};

}  // namespace wafer::csl
