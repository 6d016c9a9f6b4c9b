// Operands of operations on descriptors: what they name, where their elements are.
#pragma once
#include "queues.h"
#include "scalar.h"

namespace wafer::csl {
namespace {

constexpr uint32_t kEndless = UINT32_MAX;
constexpr uint32_t kUnbound = 1u << 31;  // a slot that never has a word
constexpr int kEndlessExtent = 0x7FFF;  // a fabric descriptor of this length ends by control alone

inline int field(uint64_t descriptor, int k) { return int(descriptor >> 16 * k & 0xFFFF); }

inline int64_t& reg(const Core& core, int k) { return core.registers[core.base + k]; }

inline Dsr& dsr(const Core& core, int file, int id) {
  return core.dsrs[file * program(core).dsrs + id];
}

// Where some bytes are, or none: outside of what the program declares nothing can be written,
// and zeros are read right behind it.
inline uint8_t* locate(const Core& core, int64_t address, int bytes, bool write) {
  const int64_t end = int64_t(program(core).memory.size()) + (write ? 0 : kPad);
  return address + bytes > end ? nullptr : core.memory + address;
}

// The color that a fabric operand reads, as a slot; -1 if its queue is bound to none. On WSE-2 the
// descriptor's own color comes before that of its queue, unless the running program has bound it.
inline int source_slot(const Wafer& w, const Core& core, const Stream& s) {
  const FabricRow& row = program(core).fabrics[s.row];
  const int own = row.color >= 0 ? w.slot[row.color] : -1;
  const bool encoded = row.queue >= 0 && core.encoded >> row.queue & 1;
  if (own >= 0 && !w.costs.wse3 && !encoded) return own;
  return row.queue >= 0 && core.in_slot[row.queue] >= 0 ? core.in_slot[row.queue] : own;
}

// What the operands of an operation say together.
struct Issue {
  bool asynchronous;
  int thread, priority, queue;  // queue: of the destination, else of the first source
  int effects;
  bool fabric = false, fifo = false;
  bool held = false, named = false;  // a descriptor of the fabric in a DSR, or in the operation
  int problem = kNoFault;
  int64_t detail = 0;
};

inline Stream& stream(Operation& o, int k) {
  Stream* const all[4] = {&o.dest, &o.src0, &o.src1, &o.scalar};
  return *all[k];
}

// Whether a descriptor names a row that there is, as an operand that can be of its kind: programs
// build descriptors, and the host writes them.
inline bool fits(const Program& p, Operand kind, uint64_t value, int k) {
  switch (kind) {
    case Operand::kShaped: return size_t(field(value, 1)) < p.shapes.size();
    case Operand::kFabric: return size_t(field(value, 0)) < p.fabrics.size() && k < 3;
    case Operand::kFifo: return (value & 0xFFFFFFFF) < p.fifos.size() && k < 3;
    case Operand::kScalar: return k > 0;
    default: return kind != Operand::kDsr;
  }
}

inline void hear(int ends, int action, int target, Operation* o) {
  o->control_ends |= ends != 0;
  if (!o->on_control.action) o->on_control = {int8_t(action), int8_t(target)};
}

inline uint32_t mask(const Stream& s) { return s.width == 2 ? 0xFFFF : ~0u; }

inline int resolve_fabric(Wafer& w, Core& core, uint64_t value, int k, Operation* o, Issue* issue) {
  const Program& p = program(core);
  Stream& s = stream(*o, k);
  s.row = int16_t(field(value, 0));
  const FabricRow& row = p.fabrics[s.row];
  issue->fabric = true;
  if (issue->queue < 0) issue->queue = row.queue;
  if (bool(row.sends) != (k == 0) || (row.sends && row.queue < 0)) issue->problem = kWrongOperand;
  if (!row.sends) {
    // Old programs name a queue and a color without binding one to the other.
    if (row.queue >= 0 && row.color >= 0 && core.in_slot[row.queue] < 0 &&
        bound_to(core, w.slot[row.color]) < 0)
      bind_input(w, core, row.queue, w.slot[row.color]);
    if (source_slot(w, core, s) < 0) issue->problem = kNoColor, issue->detail = row.queue;
    hear(row.control_ends, row.control_action, row.control_target, o);
  }
  const QueueRow* queue = row.queue < 0 ? nullptr : &p.queues[row.queue + kQueues * (k == 0)];
  if (issue->priority < 0) issue->priority = row.priority;
  if (issue->priority < 0 && queue) issue->priority = queue->priority;
  const int word = row.queue < 0 ? 0 : core.thread_words[row.queue] >> 8 & 3;
  if (issue->priority < 0 && word) issue->priority = word > 1 ? 2 : 1;
  const int length = field(value, 1);
  return length == kEndlessExtent ? -2 : length;
}

// Sets up operand k; returns its length, -1 if it has none.
inline int resolve(Wafer& w, Core& core, Operand kind, uint64_t value, int k, Operation* o,
                   Issue* issue) {
  const Program& p = program(core);
  Stream& s = stream(*o, k);
  const bool held = kind == Operand::kDsr;
  if (held) {
    const bool known = value >> 8 <= 2 && int(value & 0xFF) < p.dsrs;
    if (!known || dsr(core, int(value >> 8), int(value & 0xFF)).row < 0) {
      issue->problem = kDsrNotLoaded, issue->detail = int64_t(value);
      return 0;
    }
    const Dsr& loaded = dsr(core, int(value >> 8), int(value & 0xFF));
    const DsrRow& row = p.dsr_loads[loaded.row];
    s.dsr = int16_t(value);
    kind = Operand(row.kind), value = loaded.value;
    issue->asynchronous |= row.asynchronous != 0;
    if (issue->thread < 0) issue->thread = row.thread;
    o->effects[issue->effects++] = {int8_t(row.action), int8_t(row.target)};
    hear(row.control_ends, row.control_action, row.control_target, o);
  }
  s.kind = kind, s.base = int32_t(value);
  if (!fits(p, kind, value, k)) return issue->problem = kWrongOperand, 0;
  switch (kind) {
    case Operand::kMemory:
      s.base = field(value, 0), s.step = int16_t(field(value, 2)) * s.width;
      s.indexed = field(value, 3) >> 15;
      return field(value, 1);
    case Operand::kShaped: {
      s.base = field(value, 0), s.row = int16_t(field(value, 1));
      const ShapeRow& shape = p.shapes[s.row];
      return shape.n0 * shape.n1 * shape.n2 * shape.n3;
    }
    case Operand::kFabric:
      (held ? issue->held : issue->named) = true;
      return resolve_fabric(w, core, value, k, o, issue);
    case Operand::kFifo: {
      s.row = int16_t(value), issue->fifo = true;
      const Fifo& fifo = core.fifos[s.row];
      const int length = k == 0 ? fifo.write_length : fifo.read_length;
      return length ? length : -1;
    }
    case Operand::kPointer: s.base = int32_t(value & 0xFFFF); return -1;
    default: s.base = int32_t(value & mask(s)); return -1;
  }
}

// That of the first source, of the second, of the destination; 1 if all are single values.
inline uint32_t length(const Operation&, const int* lengths) {
  bool any = false;
  for (const int k : {1, 2, 0}) {
    if (lengths[k] == -2) return kEndless;
    if (lengths[k] > 0) return uint32_t(lengths[k]);
    any |= lengths[k] == 0;
  }
  return any ? 0 : 1;
}

inline bool in_memory(const Stream& s) {
  return (s.kind == Operand::kMemory || s.kind == Operand::kShaped) && !s.indexed;
}

// Between neighbours in the innermost dimension, in elements.
inline int stride(const Core& core, const Stream& s) {
  return s.kind == Operand::kShaped ? program(core).shapes[s.row].s3 : s.step / s.width;
}

// More than one if all operands lie in memory, in whole 32-bit words, with strides that allow it.
inline int elements_per_step(const Wafer& w, const Core& core, const Operation& o) {
  int out = in_memory(o.dest) ? w.costs.width[int(o.op)] : 1;
  for (const Stream* s : {&o.dest, &o.src0, &o.src1}) {
    if (s->kind == Operand::kScalar || s->kind == Operand::kNone) continue;
    if (!in_memory(*s) || s->base % 4) return 1;
    const int by = stride(core, *s);
    if (by != 0 && by != 1)
      out = std::min(out, w.costs.stride_width[s->width / 4][by & 7]);
  }
  return out;
}

// Elements of the shortest row of a descriptor with several dimensions.
inline uint32_t row_of(const Core& core, const Operation& o) {
  uint32_t out = kEndless;
  for (const Stream* s : {&o.dest, &o.src0, &o.src1})
    if (s->kind == Operand::kShaped) out = std::min(out, uint32_t(program(core).shapes[s->row].n3));
  return std::max(out, 1u);
}

// Whether each element is added to the result of the one before.
inline bool accumulates(const Operation& o) {
  const auto same = [&](const Stream& s) {
    return s.kind == Operand::kPointer && s.base == o.dest.base;
  };
  return o.dest.kind == Operand::kPointer && (same(o.src0) || same(o.src1));
}

// As many as operands go to one bank in every step: sources that meet every line, or the
// destination and sources that meet it every two. Writes come later than reads, so they meet them
// only where all go to one bank: by a stride of whole lines.
inline int cycles_per_step(const Wafer& w, const Core& core, const Operation& o) {
  if (!w.costs.banks) return 1;
  if (accumulates(o)) return w.costs.sum[int(o.op)];
  const int line = w.costs.banks * w.costs.bank_bytes;
  const auto bytes = [&](const Stream& s) { return stride(core, s) * s.width; };
  const auto meet = [&](const Stream& x, const Stream& y, int lines) {
    const auto banks = [&](const Stream& s) {
      return (o.wide * s.width + w.costs.bank_bytes - 1) / w.costs.bank_bytes;
    };
    const int period = lines * w.costs.banks;
    const int apart = (y.base / w.costs.bank_bytes - x.base / w.costs.bank_bytes) & (period - 1);
    return in_memory(x) && in_memory(y) && (bytes(x) - bytes(y)) % line == 0 &&
           (apart < banks(x) || period - apart < banks(y));
  };
  const bool columns = in_memory(o.dest) && bytes(o.dest) && bytes(o.dest) % line == 0;
  const int read = 1 + meet(o.src0, o.src1, 1);
  const int written = 1 + meet(o.dest, o.src0, 2) + meet(o.dest, o.src1, 2);
  return columns ? std::max(read, written) : read;
}

// Parts of a cycle for each cycle of a step: more than kPace where the memory or a link is slower.
inline int pace(const Wafer& w, const Operation& o, bool fabric) {
  if (fabric) return w.costs.pace[0];
  return o.wide == 1 ? kPace : w.costs.pace[1 + (in_memory(o.src0) && in_memory(o.src1))];
}

inline int capacity(const Core& core, const Stream& s) {
  return program(core).fifos[s.row].bytes / s.width * (s.width / 2);
}

inline bool short_of(const Core& core, const Stream& s, bool reads) {
  const Fifo& fifo = core.fifos[s.row];
  const int room = capacity(core, s) - fifo.used;
  return (reads ? fifo.used : room) < s.width / 2;
}

inline int address(const Core& core, const Stream& s, uint32_t k, int offset) {
  int64_t at = s.base + int64_t(s.indexed ? offset : 0);
  if (s.kind == Operand::kShaped) {
    const ShapeRow& shape = program(core).shapes[s.row];
    const int n[4] = {shape.n0, shape.n1, shape.n2, shape.n3};
    const int step[4] = {shape.s0, shape.s1, shape.s2, shape.s3};
    for (int d = 3; d >= 0; --d)
      at += int64_t(k % uint32_t(n[d])) * step[d] * s.width, k /= uint32_t(n[d]);
  } else {
    at += int64_t(k) * s.step;
  }
  return int(at & 0xFFFF);
}

// Copies a number of 1, 2, 4 or 8 bytes; a size that compilers do not know would be a call.
inline void copy(void* to, const void* from, int bytes) {
  switch (bytes) {
    case 1: std::memcpy(to, from, 1); break;
    case 2: std::memcpy(to, from, 2); break;
    case 4: std::memcpy(to, from, 4); break;
    default: std::memcpy(to, from, 8);
  }
}

// An element of 2 or 4 bytes.
inline uint32_t get(const uint8_t* bytes, uint8_t width) {
  uint32_t value = 0;
  if (width == 2) std::memcpy(&value, bytes, 2);
  else std::memcpy(&value, bytes, 4);
  return value;
}

inline void put(uint8_t* bytes, uint8_t width, uint32_t value) {
  if (width == 2) std::memcpy(bytes, &value, 2);
  else std::memcpy(bytes, &value, 4);
}

inline uint32_t pop_fifo(Core& core, const Stream& s) {
  Fifo& fifo = core.fifos[s.row];
  const FifoRow& row = program(core).fifos[s.row];
  uint32_t value = 0;
  for (int half = 0; half < s.width / 2; ++half) {
    value |= get(core.memory + row.address + 2 * fifo.head, 2) << 16 * half;
    fifo.head = (fifo.head + 1) % (row.bytes / 2), --fifo.used;
  }
  if (fifo.choked && row.push_task >= 0) core.active |= 1u << row.push_task;
  fifo.choked = false;
  return value;
}

inline void push_fifo(Core& core, const Stream& s, uint32_t value) {
  Fifo& fifo = core.fifos[s.row];
  const FifoRow& row = program(core).fifos[s.row];
  for (int half = 0; half < s.width / 2; ++half) {
    const int place = (fifo.head + fifo.used++) % (row.bytes / 2);
    put(core.memory + row.address + 2 * place, 2, value >> 16 * half);
  }
  if (fifo.starved && row.pop_task >= 0) core.active |= 1u << row.pop_task;
  fifo.starved = false;
}

// Whether all that an operation needs for an element is in plain rows of the memory, in colors
// and in values, and no row leaves what the program declares: then nothing is left to check.
inline bool is_plain(const Core& core, Operation& o) {
  if (o.op == DsdOp::kDfilt || o.clears || core.exceptions != 0xFFFF) return false;
  for (int k = 0; k < 4; ++k) {
    const Stream& s = stream(o, k);
    if (s.kind == Operand::kShaped || s.kind == Operand::kFifo || s.indexed) return false;
    if (s.kind == Operand::kFabric && program(core).fabrics[s.row].transform > 0) return false;
    if (s.kind != Operand::kMemory && s.kind != Operand::kPointer) continue;
    if (o.length == kEndless && s.step) return false;
    const int64_t last = s.base + int64_t(o.length - 1) * s.step;
    if (std::min<int64_t>(s.base, last) < 0 ||
        !locate(core, std::max<int64_t>(s.base, last), s.width, k == 0))
      return false;
  }
  return true;
}

}  // namespace
}  // namespace wafer::csl
