// XLA FFI entry of the timing plane: reads the program, picks an instruction set, splits the rows.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "runtime.h"
#include "words.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace wafer {

Result wafer_tile_baseline(const Shape&, const V*, int, int);
Result wafer_tile_avx2(const Shape&, const V*, int, int);
Result wafer_tile_avx512(const Shape&, const V*, int, int);

namespace {

Shape read_shape(const int32_t* h) {
  Shape s;
  s.rows = *h++, s.blocks = *h++, s.colors = *h++, s.ramp = *h++, s.bits = *h++, s.slots = *h++;
  s.vertical = *h++, s.max_cycles = *h++;
  s.n_ports = *h++, s.n_reads = *h++, s.n_writes = *h++;
  auto ints = [&h](int n, int* out) {
    std::copy_n(h, n, out);
    h += n;
  };
  auto pairs = [&h](int n, Pair* out) {
    for (int k = 0; k < n; ++k, h += 2) out[k] = {h[0], h[1]};
  };
  ints(s.colors, s.depths), ints(s.colors, s.merges);
  pairs(s.n_ports, s.ports), pairs(s.n_reads, s.reads), pairs(s.n_writes, s.writes);
  for (int p = 0; p < 5; ++p)
    s.shared[p] = std::count_if(s.ports, s.ports + s.n_ports,
                                [p](const Pair& pair) { return pair.b == p; }) > 1;
  return s;
}

constexpr Range kHeader[] = {
    {"rows", 1, 1 << 20}, {"blocks of 512 PEs", 1, 1 << 20}, {"the number of colors", 0, kMaxColors},
    {"the ramp's latency", 1, kMaxRamp}, {"counter bits", 1, 31}, {"the number of slots", 1, kMaxSlots},
    {"whether rows exchange words", 0, 1}, {"the limit of cycles", 0, INT32_MAX},
    {"the number of ports", 0, 5 * kMaxColors}, {"the number of reads", 0, kMaxPairs},
    {"the number of writes", 0, kMaxPairs},
};
constexpr int kMostDepth = 64;  // words of a queue, one plane each

// Says which of `count` pairs leads outside of what there is.
std::string pairs_problem(const char* what, const int32_t* at, int64_t count, int a, int b) {
  const std::string first = std::string(what) + " (first)", second = std::string(what) + " (second)";
  for (int64_t k = 0; k < count; ++k) {
    std::string wrong = within({first.c_str(), 0, a - 1}, at + 2 * k, 1);
    if (wrong.empty()) wrong = within({second.c_str(), 0, b - 1}, at + 2 * k + 1, 1);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

// Says what is wrong with a header and with the number of words behind it.
std::string problem(const int32_t* h, int64_t count, int64_t words) {
  std::string wrong = header_problem(h, count, kHeader);
  if (!wrong.empty()) return wrong;
  const int64_t colors = h[2], ports = h[8], reads = h[9], writes = h[10];
  const int64_t fixed = int64_t(std::size(kHeader)), pairs = fixed + 2 * colors;
  wrong = count_problem("the header", count, pairs + 2 * (ports + reads + writes));
  if (!wrong.empty()) return wrong;
  const int64_t planes = ports + colors + reads + writes + int64_t(h[5]) * (1 + h[4]);
  const int32_t* const at = h + pairs;
  const std::string all[] = {
      count_problem("the masks", words, int64_t(h[0]) * h[1] * planes * 16),
      within({"a queue's depth", 1, kMostDepth}, h + fixed, colors),
      pairs_problem("a pair of color and port", at, ports, h[2], 5),
      pairs_problem("a pair of read slot and color", at + 2 * ports, reads, h[5], h[2]),
      pairs_problem("a pair of written slot and color", at + 2 * (ports + reads), writes, h[5], h[2]),
  };
  for (const std::string& one : all)
    if (!one.empty()) return one;
  return {};
}

ffi::Error run(ffi::AnyBuffer header, ffi::AnyBuffer words, ffi::ResultBuffer<ffi::S32> out) {
  if (header.element_type() != ffi::DataType::S32 || words.element_type() != ffi::DataType::U32)
    return ffi::Error::InvalidArgument("timing plane: the header is not int32, or masks not uint32");
  const int32_t* h = header.typed_data<int32_t>();
  const std::string wrong =
      problem(h, int64_t(header.element_count()), int64_t(words.element_count()));
  if (!wrong.empty()) return ffi::Error::InvalidArgument("timing plane: " + wrong);
  if (out->element_count() != 3)
    return ffi::Error::InvalidArgument("timing plane: the result has not 3 numbers");
  const Shape shape = read_shape(h);
  const int64_t vectors = int64_t(shape.rows) * shape.blocks * shape.masks();
  // XLA aligns buffers less than our vectors.
  const std::unique_ptr<V, decltype(&std::free)> masks(
      static_cast<V*>(std::aligned_alloc(sizeof(V), vectors * sizeof(V))), &std::free);
  std::memcpy(static_cast<void*>(masks.get()), words.untyped_data(), vectors * sizeof(V));

  // Rows that exchange nothing are shared out among the cores.
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  const int parts = shape.vertical ? 1 : std::clamp(shape.rows / 8, 1, std::min(cores, 64));
  std::vector<Result> results(parts);
  std::vector<std::thread> threads;
  const RunRows rows = BestOf<Result(const Shape&, const V*, int, int)>(
      wafer_tile_baseline, WAFER_IF_AVX2(wafer_tile_avx2), WAFER_IF_AVX512(wafer_tile_avx512));
  auto work = [&](int part) {
    results[part] = rows(shape, masks.get(), int(int64_t(shape.rows) * part / parts),
                         int(int64_t(shape.rows) * (part + 1) / parts));
  };
  for (int part = 1; part < parts; ++part) threads.emplace_back(work, part);
  work(0);
  for (auto& thread : threads) thread.join();
  int32_t* result = out->typed_data();
  result[0] = result[1] = result[2] = 0;
  for (const Result& one : results) {
    result[0] = std::max(result[0], int32_t(one.cycles));
    result[1] |= one.fault;
    result[2] |= one.stuck;
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_timing_plane, wafer::run,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
