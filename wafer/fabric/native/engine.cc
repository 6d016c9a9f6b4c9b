// XLA FFI entry of the engine with payloads: reads program and state, shares out the rows.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>

#include "checks.h"
#include "machine.h"
#include "team.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace ffi = xla::ffi;

namespace wafer {
namespace {

constexpr int kHeader = 19, kProgram = 10, kState = 24, kMemory = 20, kCode = 8;

constexpr Range kFlag[] = {{"a flag", 0, 1}};
constexpr Range kHeaderRanges[kHeader] = {
    {"height", 1, 1 << 20}, {"width", 1, 1 << 20}, {"the number of colors", 0, kColors},
    {"the number of switch positions", 1, kTorn}, {"the number of tasks", 0, kTasks},
    {"words of memory", 0, INT32_MAX}, {"words of a queue", 1, kRamp},
    {"the ramp's latency", 1, kRamp}, {"the number of threads", 1, kThreads},
    {"the limit of cycles", 0, INT32_MAX}, *kFlag, *kFlag, *kFlag, *kFlag, *kFlag, *kFlag, *kFlag,
    {"fields of an operation", kFields, kFields}, *kFlag,
};

// Says which buffer does not have the type and size that the header asks for; the code may have any
// number of rows.
std::string buffers_problem(const int32_t* h, const ffi::RemainingArgs& args,
                            const ffi::RemainingRets& rets) {
  using T = ffi::DataType;
  const int64_t pes = int64_t(h[0]) * h[1], lanes = h[2] * pes, depth = h[6], ramp = h[7];
  const int64_t routes = h[3] * lanes, threads = h[8] * pes;
  const int64_t code = int64_t(args.get<ffi::AnyBuffer>(kCode)->element_count());
  if (pes > INT32_MAX) return "there are more PEs than a number of 32 bits counts";
  const Wanted wanted[] = {
      {"the header", T::S32, kHeader + h[2] + 4 * h[4]},
      {"rx", T::U8, routes}, {"tx", T::U8, routes}, {"positions", T::U8, lanes},
      {"swap", T::PRED, 2 * lanes}, {"ring", T::PRED, lanes}, {"depth", T::S32, h[2]},
      {"filters", T::S32, 4 * lanes}, {"code", T::S32, code / kFields * kFields},
      {"entry", T::S32, h[4] * pes},
      {"cycle", T::S32, 1}, {"progress", T::PRED, 1}, {"fault", T::S32, 4},
      {"router", T::U32, 2 * lanes}, {"flags of router", T::U8, 2 * lanes},
      {"up", T::U32, ramp * lanes}, {"flags of up", T::U8, ramp * lanes},
      {"down", T::U32, (ramp - 1) * lanes}, {"flags of down", T::U8, (ramp - 1) * lanes},
      {"queue", T::U32, depth * lanes}, {"flags of queue", T::U8, depth * lanes},
      {"pos_rx", T::U8, lanes}, {"pos_tx", T::U8, lanes}, {"counter", T::S32, lanes},
      {"pc", T::S32, threads}, {"left", T::S32, threads}, {"wait", T::S32, threads},
      {"active", T::S32, pes}, {"blocked", T::S32, pes}, {"arg", T::U32, pes},
      {"mem", T::U32, h[5] * pes}, {"busy", T::S32, pes}, {"end", T::S32, pes},
      {"links", T::S32, kPorts * pes},
  };
  static_assert(std::size(wanted) == kProgram + kState, "one for each buffer");
  for (int i = 0; i < kProgram + kState; ++i)
    if (auto wrong = buffer_problem(*args.get<ffi::AnyBuffer>(i), wanted[i]); !wrong.empty())
      return wrong;
  for (int i = 0; i < kState; ++i)
    if (auto wrong = buffer_problem(**rets.get<ffi::AnyBuffer>(i), wanted[kProgram + i]);
        !wrong.empty())
      return wrong + " (of the result)";
  return {};
}

ffi::Error refused(const std::string& what) {
  return ffi::Error::InvalidArgument("fabric engine: " + what +
                                     "; take program and state from wafer.fabric's builders");
}

Program read_program(const int32_t* h, const ffi::RemainingArgs& args) {
  Program p;
  p.height = h[0], p.width = h[1], p.colors = h[2], p.positions = h[3], p.tasks = h[4];
  p.words = h[5], p.depth = h[6], p.ramp = h[7], p.threads = h[8], p.max_cycles = h[9];
  p.switched = h[10], p.filtered = h[11], p.controls = h[12], p.per_hop = h[13];
  p.swaps = h[14], p.teardown = h[15], p.start = h[16], p.ranked = h[18];
  const int32_t* at = h + kHeader;
  for (int c = 0; c < p.colors; ++c) p.partner[c] = *at++;
  for (int t = 0; t < p.tasks; ++t, at += 4)
    p.order.push_back({at[0], at[1], at[2], at[3] != 0});
  const auto data = [&](int i) { return args.get<ffi::AnyBuffer>(i)->untyped_data(); };
  p.rx = static_cast<const uint8_t*>(data(1)), p.tx = static_cast<const uint8_t*>(data(2));
  p.defined = static_cast<const uint8_t*>(data(3));
  p.swap = static_cast<const bool*>(data(4)), p.ring = static_cast<const bool*>(data(5));
  std::copy_n(static_cast<const int32_t*>(data(6)), p.colors, p.limit);
  p.filters = static_cast<const int32_t*>(data(7));
  p.code = static_cast<const Op*>(data(8));
  p.entry = static_cast<const int32_t*>(data(9));
  return p;
}

State read_state(const ffi::RemainingRets& rets) {
  State s;
  const auto data = [&](int i) { return (*rets.get<ffi::AnyBuffer>(i))->untyped_data(); };
  const auto ints = [&](int i) { return static_cast<int32_t*>(data(i)); };
  s.cycle = ints(0), s.progress = static_cast<bool*>(data(1)), s.fault = ints(2);
  for (int k = 0; k < 4; ++k) {
    s.data[k] = static_cast<uint32_t*>(data(3 + 2 * k));
    s.flag[k] = static_cast<uint8_t*>(data(4 + 2 * k));
  }
  s.pos_rx = static_cast<uint8_t*>(data(11)), s.pos_tx = static_cast<uint8_t*>(data(12));
  s.counter = ints(13), s.pc = ints(14), s.left = ints(15), s.wait = ints(16);
  s.active = ints(17), s.blocked = ints(18), s.arg = static_cast<uint32_t*>(data(19));
  s.mem = static_cast<uint32_t*>(data(20)), s.busy = ints(21), s.end = ints(22), s.links = ints(23);
  return s;
}

// Whether any router may send across rows.
bool vertical(const Program& p) {
  const int64_t n = int64_t(p.positions) * p.colors * p.pes();
  return std::any_of(p.tx, p.tx + n, [](uint8_t ports) { return ports & (4 | 8); });
}

// Fresh buffers of hundreds of megabytes cost more in page faults than the run itself.
void want_huge_pages(void* data, size_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kPage = 1 << 21;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

using Run = Outcome (*)(const Program&, const State&, int64_t, int);

Run pick(const Program& p) {
  const int deepest = p.colors ? *std::max_element(p.limit, p.limit + p.colors) : 2;
  const bool together = vertical(p);
  if (p.ramp != 2) return together ? run_together<8, 8> : run_apart<8, 8>;
  if (deepest > 2) return together ? run_together<2, 8> : run_apart<2, 8>;
  return together ? run_together<2, 2> : run_apart<2, 2>;
}

ffi::Error run(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  if (args.size() != kProgram + kState || rets.size() != kState)
    return ffi::Error::InvalidArgument("fabric engine: wrong number of buffers");
  const auto first = args.get<ffi::AnyBuffer>(0);
  if (first->element_type() != ffi::DataType::S32) return refused("the header is not int32");
  const int32_t* header = static_cast<const int32_t*>(first->untyped_data());
  std::string wrong = header_problem(header, int64_t(first->element_count()), kHeaderRanges);
  if (wrong.empty()) wrong = buffers_problem(header, args, rets);
  if (!wrong.empty()) return refused(wrong);
  const Program p = read_program(header, args);
  const int64_t operations = int64_t(args.get<ffi::AnyBuffer>(kCode)->element_count()) / kFields;
  wrong = program_problem(p, operations);
  if (!wrong.empty()) return refused(wrong);
  State s = read_state(rets);
  s.before = static_cast<const uint32_t*>(
      args.get<ffi::AnyBuffer>(kProgram + kMemory)->untyped_data());
  auto memory = *rets.get<ffi::AnyBuffer>(kMemory);
  want_huge_pages(memory->untyped_data(), memory->size_bytes());
  const auto restore = [&] {
    for (int i = 0; i < kState; ++i) {
      if (i == kMemory) continue;
      const auto from = args.get<ffi::AnyBuffer>(kProgram + i);
      std::memcpy((*rets.get<ffi::AnyBuffer>(i))->untyped_data(), from->untyped_data(),
                  from->size_bytes());
    }
  };
  restore();
  wrong = state_problem(p, s, operations);
  if (!wrong.empty()) return refused(wrong);
  const int cores = std::max(1, std::min(int(std::thread::hardware_concurrency()), 64));
  const int threads = p.pes() < 2048 ? 1 : std::min(cores, p.height);
  const Run rows = pick(p);
  Outcome out = rows(p, s, p.max_cycles, threads);
  if (out.fault.kind && !s.fault[0] && !vertical(p)) {  // rows ran on after the first fault
    restore();
    out = rows(p, s, out.cycle, threads);
  }
  *s.cycle = out.cycle, *s.progress = out.progress;
  if (out.fault.kind && !s.fault[0]) {
    s.fault[0] = out.fault.kind, s.fault[1] = out.fault.color;
    s.fault[2] = out.fault.pe / p.width, s.fault[3] = out.fault.pe % p.width;
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_fabric_engine, wafer::run,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets());
