// Threads that move in step.
#pragma once
#include <atomic>
#include <thread>
#include <vector>

namespace wafer {

// Waits until all have come; the last one runs a function before they go on.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count), missing_(count) {}

  template <class Last>
  void wait(Last last) {
    if (count_ == 1) return last();
    const int turn = turn_.load(std::memory_order_relaxed);
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      last();
      missing_.store(count_, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins)
      if (spins > 4096) std::this_thread::yield();
  }

 private:
  const int count_;
  std::atomic<int> missing_, turn_{0};
};

// Runs work(id, barrier) on `count` threads, this one included.
template <class Work>
void run_team(int count, Work work) {
  Barrier barrier(count);
  std::vector<std::thread> threads;
  for (int id = 1; id < count; ++id) threads.emplace_back([&, id] { work(id, barrier); });
  work(0, barrier);
  for (auto& thread : threads) thread.join();
}

}  // namespace wafer
