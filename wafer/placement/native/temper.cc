// Parallel tempering of slicing trees: forests at several temperatures that now and then change
// places (Swendsen and Wang 1986; Hukushima and Nemoto 1996). Hot ones reach other plans, cold ones
// shorten their wires; called through ctypes from wafer/placement/native/__init__.py.
#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <vector>

#include "forest.h"
#include "runtime.h"

namespace wafer {

extern const Curves wafer_tile_baseline;
extern const Curves wafer_tile_avx2;
extern const Curves wafer_tile_avx512;

namespace {

const Curves& BestCurves() {
  return BestOf(wafer_tile_baseline, WAFER_IF_AVX2(wafer_tile_avx2),
                WAFER_IF_AVX512(wafer_tile_avx512));
}

constexpr int kMovesBetweenSwaps = 1000;
constexpr double kMostGain = 0.05;  // of the wires, that one move is expected to save

struct Replica {
  Forest forest;
  double length;
  int over;
};

struct Best {
  int32_t* tree;
  double length = INFINITY;
};

// Moves of one replica at one temperature (Metropolis). The threshold is drawn first, so that a
// plan which cannot be taken need not be measured.
void run(Replica& r, const Problem& problem, double heat, double price, Best& best) {
  const int64_t longer = std::max(problem.width, problem.height);
  const int64_t room = static_cast<int64_t>(problem.width) * problem.height - problem.area;
  for (int move = 0; move < kMovesBetweenSwaps; ++move) {
    const double threshold = -heat * std::log(r.forest.random.unit() + 1e-12);
    const double allowed = r.over + (threshold + kMostGain * r.length) / price;
    const auto most = static_cast<int64_t>(std::min<double>(allowed, problem.points - longer - 1));
    bool taken = false;
    if (r.forest.change(room + most * longer + most * most)) {
      const int over = r.forest.over();
      if (over <= most) {
        const double length = r.forest.length();
        taken = length - r.length + price * (over - r.over) <= threshold;
        if (taken) r.length = length, r.over = over;
      }
    }
    if (!taken) {
      r.forest.undo();
      continue;
    }
    r.forest.keep();
    if (!r.over && r.length < best.length) {
      best.length = r.length;
      r.forest.write(best.tree);
    }
  }
}

double temper(const int32_t* sizes, const int16_t* high, const int32_t* kinds, const int32_t* edges,
              const int32_t* tree, uint64_t seed, int64_t moves, const double* heats,
              int32_t* best_tree) {
  const Curves& curves = BestCurves();
  Problem problem{sizes[0], sizes[1], sizes[2], sizes[3], high, kinds, {}, {}, {}, 0, &curves};
  problem.near.resize(sizes[0]);
  for (int e = 0; e < sizes[4]; ++e) {
    const int a = edges[2 * e], b = edges[2 * e + 1];
    problem.edges.emplace_back(a, b);
    problem.near[a].push_back(b), problem.near[b].push_back(a);
  }
  problem.same.resize(1 + *std::max_element(kinds, kinds + sizes[0]));
  for (int k = 0; k < sizes[0]; ++k) {
    problem.same[kinds[k]].push_back(k);
    problem.area += problem.curves->area(high + static_cast<int64_t>(k) * sizes[1], sizes[1]);
  }
  const int count = sizes[5];
  std::vector<Replica> replicas;
  std::vector<double> heat(count);
  std::vector<int> at(count);  // which replica has which temperature, hottest first
  std::iota(at.begin(), at.end(), 0);
  Best best{best_tree};
  for (int k = 0; k < count; ++k) {
    heat[k] = heats[0] * std::pow(heats[1] / heats[0], count > 1 ? k / (count - 1.0) : 1.0);
    replicas.push_back({Forest(problem, tree, seed * 1000 + k), 0.0, 0});
    Replica& r = replicas.back();
    r.over = r.forest.over();
    if (r.over >= sizes[1]) return INFINITY;
    r.length = r.forest.length();
    if (!r.over && r.length < best.length) best.length = r.length, r.forest.write(best_tree);
  }
  Random random(seed * 1000 + 999);
  const int64_t rounds = std::max<int64_t>(1, moves / (kMovesBetweenSwaps * count));
  for (int64_t round = 0; round < rounds; ++round) {
    for (int k = 0; k < count; ++k) run(replicas[at[k]], problem, heat[k], heats[2], best);
    for (int k = round % 2; k + 1 < count; k += 2) {
      const Replica &hot = replicas[at[k]], &cold = replicas[at[k + 1]];
      const double less = cold.length - hot.length + heats[2] * (cold.over - hot.over);
      if (random.unit() < std::exp(less * (1 / heat[k + 1] - 1 / heat[k])))
        std::swap(at[k], at[k + 1]);
    }
  }
  return best.length;
}

}  // namespace
}  // namespace wafer

// sizes: kernels, points, width, height, connections, replicas. tree: kernels, -1 (side by side)
// and -2 (stacked) before their two parts. heats: hottest, coldest, price of a PE too many. Returns
// the best length, infinite if no plan met fits, and its tree in `best_tree`; NaN without memory.
// Nothing is checked here: arrays without lengths cannot be, the caller in Python does it.
extern "C" double wafer_temper(const int32_t* sizes, const int16_t* high, const int32_t* kinds,
                               const int32_t* edges, const int32_t* tree, uint64_t seed,
                               int64_t moves, const double* heats, int32_t* best_tree) {
  try {
    return wafer::temper(sizes, high, kinds, edges, tree, seed, moves, heats, best_tree);
  } catch (const std::exception&) {
    return std::nan("");
  }
}
