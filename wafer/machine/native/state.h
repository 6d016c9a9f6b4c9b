// The state of a PE, and of all PEs.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "recorder.h"

namespace wafer::csl {

// Sides in the order of the color register's bits; what leaves by one arrives from the other of
// its pair.
constexpr uint8_t kRampPort = 16;
inline int opposite(int side) { return side ^ 1; }  // west, east, south, north

constexpr uint8_t kValid = 1, kControl = 2, kAdvance = 4;  // of a wavelet
constexpr uint8_t kClash = 8;  // two came in one cycle

// Fields of the color register (CONFIG in codes.py).
constexpr int kSwapX = 1 << 10, kSwapY = 1 << 11, kTorn = 1 << 14, kSteered = 1 << 15;
constexpr int kMessages = 14;  // the first of the colors of messages (MESSAGES in codes.py)
enum PopMode { kNoPop, kAlwaysPop, kPopOnAdvance, kPopOnAdvanceNop };

struct FilterState {
  int32_t row = -1, counter = 0, limit = 0, most = 0;
  bool second = false;  // the sparse counter has reached its first limit
};

// A number of 8 bits. What is stored as uint8_t could be a part of anything, and compilers load all
// pointers again behind it.
class Byte {
 public:
  Byte(int value = 0) : value_(Value(value)) {}
  operator int() const { return int(value_); }
  Byte& operator|=(int bits) { return *this = *this | bits; }
  Byte& operator&=(int bits) { return *this = *this & bits; }
  Byte& operator+=(int count) { return *this = *this + count; }
  int load_relaxed() const { return int(__atomic_load_n(&value_, __ATOMIC_RELAXED)); }
  void store_relaxed(int value) { __atomic_store_n(&value_, Value(value), __ATOMIC_RELAXED); }

 private:
  enum Value : uint8_t {} value_;
};

// A word with its flags, in one register; between the CE and the ramp with its output queue and slot.
class Wavelet {
 public:
  Wavelet() = default;  // nothing
  // slot: of the color; -1: that of the queue's register.
  Wavelet(int queue, int slot, int flag, uint32_t word)
      : bits_(uint64_t(word) << 32 | uint64_t(uint8_t(queue)) << 16 | uint64_t(uint8_t(slot)) << 8 |
              uint64_t(flag)) {}
  Wavelet(uint32_t word, int header) : bits_(uint64_t(word) << 32 | uint64_t(header)) {}
  explicit operator bool() const { return bits_; }  // every word has a flag
  int count() const { return int(bits_) & kValid; }  // 1, or 0 of nothing
  uint32_t word() const { return uint32_t(bits_ >> 32); }
  int queue() const { return int8_t(bits_ >> 16); }
  int slot() const { return int8_t(bits_ >> 8); }
  int flag() const { return uint8_t(bits_); }
  int header() const { return int(bits_); }  // its queue, slot and flags
  Wavelet onto(int slot) const { return {queue(), slot, flag(), word()}; }
  Wavelet with(int flags) const { return Wavelet(bits_ | uint64_t(flags)); }
  Wavelet without(int flags) const { return Wavelet(bits_ & ~uint64_t(flags)); }

  // Whether one of them is something.
  template <class... Others>
  friend bool any(const Others&... all) {
    return (all.bits_ | ...);
  }

  // Puts it where nothing is; if something is there, that is marked.
  void join(Wavelet* there) const { *there = *there ? there->with(kClash) : *this; }
  void join_relaxed(Wavelet* there) const {
    if (__atomic_exchange_n(&there->bits_, bits_, __ATOMIC_RELAXED))
      __atomic_fetch_or(&there->bits_, uint64_t(kClash), __ATOMIC_RELAXED);
  }

 private:
  explicit Wavelet(uint64_t bits) : bits_(bits) {}
  uint64_t bits_ = 0;
};

// One color at one PE: the router's FIFO, the ramp's stages, and the CE's queue.
struct alignas(32) Lane {
  Wavelet up[2], down;
  Wavelet arriving;        // from a neighbour in this cycle
  Wavelet router[2];
  Byte head, size, depth;  // of the queue
  Byte popped;             // by the CE in this cycle
  Byte rx, tx;             // ports by which words enter and leave, at the switches' positions
  Byte ports;              // by which the head leaves in this cycle
  bool go;
  Byte controls;           // of the queue: a bit per place
  uint8_t pos_rx : 4, pos_tx : 4;
  bool torn_rx : 1, torn_tx : 1, filtered : 1;
  uint16_t color, switches;  // registers
  uint32_t words[kQueues];   // the queue

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
  int32_t base = 0, step = 0;      // bytes; of SCALAR: the value; of FABRIC: a header, a slot
};

struct Effect {
  int8_t action, target;
};

struct alignas(64) Operation {
  int32_t pc;                // of code
  uint32_t length, done, carry;
  uint32_t row;              // elements of a row: a step ends with it
  int16_t turn;              // of the running step, what is over; below 0: before the first
  uint16_t turns;            // of a step, in parts of a cycle: kPace are one
  uint8_t wide;              // elements per step
  DsdOp op;
  bool plain;                // as is_plain says
  bool moves;                // the elements of its first source stay as they are
  uint8_t clears;            // sources in memory that are zeroed: 1 src0, 2 src1
  bool indexed;              // an operand's address depends on the wavelets of 16 bits
  bool control_ends;
  uint16_t index;            // of its wavelets
  Stream dest, src0, src1, scalar;
  int32_t task, task_id;     // that began it
  Effect effects[5], on_control;  // its own, and one of each operand that is a DSR
};
static_assert(sizeof(Operation) == 128, "two lines of the caches, the first with most of a step");

struct OutputQueue {
  Wavelet words[kQueues];
  uint32_t since[kQueues];  // cycles; wrap
  Byte head, size;
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

enum class Main : uint8_t { kIdle, kRunning, kOperating, kReceiving, kSending, kWaiting };
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

constexpr int kAddresses = 1 << 16;  // of bytes

struct alignas(64) Core {
  // What a busy PE needs in every cycle comes first.
  const Program* code = nullptr;  // none: no program
  int32_t program = -1, cell = 0;
  Lane* lanes = nullptr;            // by slot
  Operation* operations = nullptr;  // the task's own, then the microthreads'
  uint8_t* memory = nullptr;
  Main main = Main::kIdle;
  bool busy = false;        // its task's instructions need the cycles until it wakes
  Byte sending;             // output queues with words
  Byte full;                // output queues without room
  uint16_t threads = 0;     // that run an operation; bit kMainThread: the task's own
  uint16_t with_fifos = 0;  // of them, those whose operation has a FIFO
  uint32_t queued = 0;      // slots with words for the CE
  uint32_t popped = 0;      // slots that the CE took a word from in this cycle
  uint32_t active = 0, torn = 0, blocked[kGates] = {};
  Byte flushed, flushing;   // output queues: found empty, and to be found so
  bool called = false;      // the host's launches wait
  bool feeding = false;     // words of the host are to come in
  bool commanded = false;   // the host's command stream waits for NEXT_COMMAND
  int8_t in_slot[kQueues], out_slot[kQueues];  // colors bound, as places in the list of lanes
  Wait waits[kThreads + 1];  // of the threads' operations; the main thread's included

  Byte encoded;             // input queues that the running program has bound
  bool paid = false;        // for the visible instruction at pc
  Byte last_task = 31;      // that was dispatched
  int8_t awaited = -1;      // microthread whose operation a waiting task needs to end
  Task task = Task::kLocal;
  uint16_t thread_words[kQueues] = {};  // of microthreads: bit 8 medium, bit 9 high priority
  int32_t task_id = 0, pc = 0, base = 0, depth = 0;
  int32_t shared_begin = kAddresses, shared_end = 0;  // bytes that microthreads' operations lie within
  int64_t worked = 0, ended = 0;  // cycles in which the CE works; behind the last of them
  int64_t* registers = nullptr;
  OutputQueue* output = nullptr;
  Dsr* dsrs = nullptr;
  Fifo* fifos = nullptr;
  int64_t stamp = 0, stamp_from = -1;  // the counter, and since when it runs
  uint32_t random[kGenerators];
  uint16_t turns[kQueues];  // words that have started a queue's data task, if that rotates
  uint16_t transform = 0, generator = 0, exceptions = 0xFFFF;  // registers
};

struct Launch {
  int32_t entry;
  std::vector<int64_t> words;
};

// Words of a color between the host and a PE's port: by the ramp those of a stream, by a side those that
// enter and leave the rectangle there.
struct Exchange {
  std::deque<Wavelet> in;
  std::deque<uint32_t> out;
  int64_t expected = 0;  // words that the host has asked a stream for and not taken
};

// What a PE exchanges with the host.
struct Host {
  std::deque<Launch> launches;
  int32_t entry = -1;                 // of the last one that began
  std::map<int, Exchange> exchanges;  // by slot * kPorts + port
  std::string line;                   // printed so far
};

struct Print {
  int64_t cycle;
  int32_t cell;
  std::string text;
};

enum FaultKind {
  kNoFault, kSameCycleArrival, kOffWafer, kOutsideMemory, kUnboundControl, kMessage, kDivision,
  kTooDeep, kNoColor, kNoConfig, kDsrNotLoaded, kNoThread, kBadCode, kWrongOperand,
  kOverrun, kOverread, kNoElements, kException
};

struct Fault {
  int32_t kind = kNoFault, cell = 0, task = 0, task_id = 0, pc = -1;
  int64_t detail = 0;
};

// What one instruction has taken and done; reads and writes of the memory in 16-bit words.
struct Work {
  int64_t cycles, operations, elements, reads, writes;

  Work& operator+=(const Work& o) {
    cycles += o.cycles, operations += o.operations, elements += o.elements;
    reads += o.reads, writes += o.writes;
    return *this;
  }
};

// What one host thread gathers in its rows.
struct Worker {
  explicit Worker(const std::vector<Program>& programs) {
    for (const Program& p : programs) work.emplace_back(p.code.size());
  }

  Wavelet fresh;  // a word sent in this cycle while all output queues were empty
  Fault fault;
  bool moved = false, swaps = false;
  int own_from = 0, own_to = 0;  // cells that no other thread sends to in a cycle
  int64_t answered = 0;  // launches returned, commands unblocked
  std::vector<Print> prints;
  std::vector<std::vector<Work>> work;  // by program and instruction

  // The first PE's is reported, so that it does not depend on the threads.
  void note(const Fault& seen) {
    if (!fault.kind || seen.cell < fault.cell) fault = seen;
  }
};

constexpr int64_t kNever = INT64_MAX;

// All PEs, and what they run.
struct Wafer : Grid {
  // From tables, as far as its programs; load() in machine.cc reads the rest.
  explicit Wafer(Reader& in)
      : Grid(in.row<Grid>()), costs(in.row<Costs>()), colors(in.rows<int32_t>()),
        filters(in.rows<FilterRow>()), programs(programs_of(in, kinds)),
        slots(int(colors.size())), lanes(size_t(cells()) * slots), live(cells()),
        incoming(cells()), visit(cells(), Byte(1)), next(cells()), sides(cells()),
        links(size_t(cells()) * kPorts), cores(cells()), hosts(cells()), wake(cells(), kNever),
        offset{-1, 1, width, -width}, reach{-slots, slots, width * slots, -width * slots} {
    std::fill_n(slot, kColors, -1);
    for (int k = 0; k < slots; ++k) slot[colors[k]] = int8_t(k);
    for (int k = 0; k < slots; ++k) partner.push_back(slot[colors[k] ^ 1]);
    for (int cell = 0; cell < cells(); ++cell) {
      const int x = cell % width, y = cell / width;
      sides[cell] = (x > 0) | (x + 1 < width) << 1 | (y + 1 < rows) << 2 | (y > 0) << 3;
    }
  }

  Wafer(const Wafer&) = delete;  // cores point into it

  int cells() const { return rows * width; }
  Lane& at(int cell, int slot) { return lanes[size_t(cell) * slots + slot]; }
  const Lane& at(int cell, int slot) const { return lanes[size_t(cell) * slots + slot]; }

  const Costs costs;
  const std::vector<int32_t> colors;  // in use, ascending
  const std::vector<FilterRow> filters;
  const std::vector<Program> programs;
  const int slots;
  int8_t slot[kColors];  // of each color, or -1
  uint32_t to_host = 0;  // slots
  int64_t held = INT64_MAX;  // words of a stream that leave before the host asks for them
  std::vector<int8_t> partner;
  bool swaps = false;  // a router may swap or steer colors
  bool open = false;   // the host exchanges words by the rectangle's sides

  Arena<Lane> lanes;
  std::vector<Wavelet> wires;               // words on their way to each lane, if a hop takes 2
  std::vector<FilterState> filtering;       // of each lane, if there are filters
  std::vector<uint16_t> beside;             // of each lane of WSE-3: positions that change both sides
  std::vector<uint32_t> live, incoming;     // slots with words; to which words come
  std::vector<Byte> visit, next, sides;  // sides: ports with a neighbour
  std::vector<uint32_t> links;
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
  static std::vector<Program> programs_of(Reader& in, int count) {
    std::vector<Program> out;
    for (; count > 0; --count) out.emplace_back(in);
    return out;
  }
};

}  // namespace wafer::csl
