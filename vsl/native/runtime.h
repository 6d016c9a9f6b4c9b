// Shared by the native handlers of every package: choosing an instruction set, splitting work over XLA's thread pool, and scratch memory.
#ifndef WAFER_VSL_NATIVE_RUNTIME_H_
#define WAFER_VSL_NATIVE_RUNTIME_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace wafer {

// Instruction sets in rising order; which of them were compiled in, the caller knows.
enum class Target { kBaseline, kAvx2, kAvx512 };

// What this processor has and its system saves. Not by __builtin_cpu_supports: what Zig 0.17 builds
// answers no to every question.
struct Processor {
  bool avx2 = false;    // with multiply-adds
  bool avx512 = false;  // F, BW, DQ and VL
  bool vbmi2 = false;   // spreads 16-bit values

  Processor() {
#if defined(__x86_64__) || defined(__i386__)
    unsigned a = 0, b = 0, c = 0, d = 0, saved = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !All(c, {12, 27})) return;  // FMA, OSXSAVE
    asm volatile("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    avx2 = All(saved, {1, 2}) && All(b, {5});
    avx512 = avx2 && All(saved, {5, 6, 7}) && All(b, {16, 17, 30, 31});
    vbmi2 = avx512 && All(c, {6});
#endif
  }

 private:
  static bool All(unsigned word, std::initializer_list<int> bits) {
    return std::all_of(bits.begin(), bits.end(), [=](int bit) { return (word >> bit & 1) != 0; });
  }
};

// The best one of this machine. WAFER_NATIVE=avx2 or baseline stops there.
inline Target BestTarget() {
  const char* asked = std::getenv("WAFER_NATIVE");
  const char* most = asked == nullptr ? "" : asked;
  const Processor has;
  if (std::strcmp(most, "baseline") == 0) return Target::kBaseline;
  if (std::strcmp(most, "avx2") != 0 && has.avx512) return Target::kAvx512;
  return has.avx2 ? Target::kAvx2 : Target::kBaseline;
}

// The best of the tables that were compiled in (setup.py names them); null where one was not.
#if defined(WAFER_HAS_AVX512)
#define WAFER_IF_AVX512(table) &table
#else
#define WAFER_IF_AVX512(table) nullptr
#endif
#if defined(WAFER_HAS_AVX2)
#define WAFER_IF_AVX2(table) &table
#else
#define WAFER_IF_AVX2(table) nullptr
#endif
template <typename Table>
const Table& BestOf(const Table& baseline, const Table* avx2, const Table* avx512) {
  const Target target = BestTarget();
  if (target == Target::kAvx512 && avx512 != nullptr) return *avx512;
  if (target >= Target::kAvx2 && avx2 != nullptr) return *avx2;
  return baseline;
}

// A number of items to work on, in any order and on any thread.
struct Phase {
  int64_t items;
  std::function<void(int64_t)> work;
};

// Runs phases one after another on the pool and on the calling thread; returns when all are done.
// The caller takes items itself and waits only for items that a thread has taken, so it never waits
// for a thread that the pool cannot give: a helper that starts late finds no item left and touches
// nothing of the caller's frame. Waking a helper costs as much as a small phase: it is done once.
inline void ParallelPhases(xla::ffi::ThreadPool& pool, std::vector<Phase> phases) {
  struct State {
    std::vector<Phase> phases;
    std::vector<std::atomic<int64_t>> next, finished;
    explicit State(std::vector<Phase> given)
        : phases(std::move(given)), next(phases.size()), finished(phases.size()) {}
  };
  int64_t most = 0;
  for (const Phase& phase : phases) most = std::max(most, phase.items);
  const int64_t helpers = std::min(pool.num_threads(), most) - 1;
  if (helpers <= 0) {
    for (const Phase& phase : phases) {
      for (int64_t i = 0; i < phase.items; ++i) phase.work(i);
    }
    return;
  }
  auto state = std::make_shared<State>(std::move(phases));
  const auto run = [state](bool helper) {
    for (size_t p = 0; p < state->phases.size(); ++p) {
      const int64_t items = state->phases[p].items;
      for (int64_t i; (i = state->next[p].fetch_add(1)) < items;) {
        state->phases[p].work(i);
        state->finished[p].fetch_add(1, std::memory_order_release);
      }
      if (helper && p + 1 == state->phases.size()) return;
      for (int tries = 0; state->finished[p].load(std::memory_order_acquire) < items; ++tries) {
        if (tries < 1000) {
          std::this_thread::yield();
        } else {
          std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
      }
    }
  };
  for (int64_t h = 0; h < helpers; ++h) {
    pool.Schedule(std::function<void()>([run] { run(true); }));
  }
  run(false);
}

// Runs work(0) .. work(items - 1), see ParallelPhases.
inline void ParallelFor(xla::ffi::ThreadPool& pool, int64_t items,
                        std::function<void(int64_t)> work) {
  ParallelPhases(pool, {{items, std::move(work)}});
}

// Memory kept between calls, in huge pages where the system has them: a fresh mapping costs a page
// fault for every 4 KiB, a walk at random through small pages a TLB miss for every row.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : block_(Take(bytes)) {}
  ~Scratch() {
    std::lock_guard<std::mutex> lock(Mutex());
    Free().push_back(block_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* floats() const { return static_cast<float*>(block_.data); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(block_.data);
  }
  bool ok() const { return block_.data != nullptr; }

 private:
  struct Block {
    void* data;
    size_t bytes;
  };
  static constexpr size_t kHugePage = size_t{1} << 21;

  // Never destroyed: threads of the pool may outlive static destructors.
  static std::mutex& Mutex() {
    static std::mutex* mutex = new std::mutex;
    return *mutex;
  }
  static std::vector<Block>& Free() {
    static auto* blocks = new std::vector<Block>;
    return *blocks;
  }

  static Block Take(size_t bytes) {
    Block stale{nullptr, 0};
    {
      std::lock_guard<std::mutex> lock(Mutex());
      std::vector<Block>& blocks = Free();
      size_t best = blocks.size();
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].bytes >= bytes && (best == blocks.size() || blocks[i].bytes < blocks[best].bytes)) {
          best = i;
        }
      }
      if (best == blocks.size() && !blocks.empty()) best = 0;  // too small: replaced, not kept
      if (best < blocks.size()) {
        stale = blocks[best];
        blocks.erase(blocks.begin() + best);
      }
    }
    if (stale.bytes >= bytes && stale.data != nullptr) return stale;
    std::free(stale.data);
    const size_t rounded = (std::max(bytes, size_t{1}) + kHugePage - 1) / kHugePage * kHugePage;
    void* data = nullptr;
    if (posix_memalign(&data, kHugePage, rounded) != 0) return {nullptr, 0};
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(data, rounded, MADV_HUGEPAGE);
#endif
    return {data, rounded};
  }

  Block block_;
};

}  // namespace wafer

#endif  // WAFER_VSL_NATIVE_RUNTIME_H_
