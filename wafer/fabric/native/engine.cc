// XLA FFI entry of the engine with payloads: reads program and state, shares out the rows.
#include <algorithm>
#include <cstring>
#include <thread>

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

constexpr int kHeader = 19, kProgram = 10, kState = 24, kMemory = 20;

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
  return std::any_of(p.tx, p.tx + n, [](uint8_t ports) { return ports & 5; });
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
  const int32_t* header = static_cast<const int32_t*>(args.get<ffi::AnyBuffer>(0)->untyped_data());
  const Program p = read_program(header, args);
  if (p.colors > kColors || p.ramp > kRamp || p.depth > 8 || p.threads > kThreads ||
      p.tasks > kTasks || header[17] != kFields)
    return ffi::Error::InvalidArgument("fabric engine: more colours, stages or tasks than it holds");
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
