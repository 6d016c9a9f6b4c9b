// XLA FFI entry of the timing plane: reads the program, picks an instruction set, splits the rows.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

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

ffi::Error run(ffi::Buffer<ffi::S32> header, ffi::Buffer<ffi::U32> words,
               ffi::ResultBuffer<ffi::S32> out) {
  const int32_t* h = header.typed_data();
  if (header.element_count() < 11 || h[2] > kMaxColors || h[3] > kMaxRamp || h[5] > kMaxSlots)
    return ffi::Error::InvalidArgument("timing plane: more than 24 colours, 64 slots, or T_R > 8");
  const Shape shape = read_shape(h);
  const int64_t vectors = int64_t(shape.rows) * shape.blocks * shape.masks();
  if (int64_t(words.element_count()) != vectors * 16)
    return ffi::Error::InvalidArgument("timing plane: the masks do not fit the header");
  // XLA aligns buffers less than our vectors.
  const std::unique_ptr<V, decltype(&std::free)> masks(
      static_cast<V*>(std::aligned_alloc(sizeof(V), vectors * sizeof(V))), &std::free);
  std::memcpy(static_cast<void*>(masks.get()), words.typed_data(), vectors * sizeof(V));

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
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
