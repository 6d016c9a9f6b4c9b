// A slicing tree that is changed in place and can be changed back; see forest.cc.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "curves.h"

namespace wafer {

// Random numbers that are the same everywhere (xorshift64).
struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(88172645463325252ull + seed * 1234567ull) {
    for (int i = 0; i < 20; ++i) next();
  }
  uint32_t next() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<uint32_t>(state >> 32);
  }
  int below(size_t n) { return static_cast<int>((static_cast<uint64_t>(next()) * n) >> 32); }
  double unit() { return next() / 4294967296.0; }
};

// What plans are made of: kernels, connections, the wafer.
struct Problem {
  int kernels, points, width, height;
  const Length* high;  // [kernels, points]
  const int32_t* kinds;
  std::vector<std::pair<int, int>> edges;
  std::vector<std::vector<int>> near, same;  // connected kernels; kernels of each kind
  int64_t area = 0;                          // sum of the kernels' least areas
  const Curves* curves;
};

// Nodes 0 .. kernels - 1 are the kernels, the others join two parts side by side or stacked.
struct Node {
  int left, right, up;
  bool beside;
  int count;     // kernels
  int slot;      // of its curves
  int64_t area;  // least areas of its kernels
};

class Forest {
 public:
  Forest(const Problem& problem, const int32_t* tree, uint64_t seed);
  Forest(Forest&&) = default;

  // Tries one change. False if there is nothing to measure: undo it. `slack`: PEs of area that a
  // plan worth measuring wastes at most.
  bool change(int64_t slack);
  void undo();
  void keep();

  int over();       // by how many PEs in x and y the best plan is too large
  double length();  // of the connections in that plan; after over()
  void write(int32_t* tree) const;

  Random random;

 private:
  struct Slot {
    Length* at[2];  // least height for each width, least width for each height
    int first[2];   // first point where there is one
    bool known[2];
  };
  using Kernels = std::vector<int>;

  int read(const int32_t*& tree);
  void write(int node, int32_t*& tree) const;
  const Length* curve(int node, bool beside);
  bool join(int node, bool compare);
  bool above(int a, int b) const;
  void save(int node) { saved_.emplace_back(node, nodes_[node]); }
  void replace(int parent, int from, int to);
  void put(int parent, bool left, int node);
  void refresh(int from, int must);
  void refresh_two(int a, int b);
  void exchange(int a, int b);
  void place(int node, int x, int y, int width, int height);

  bool swap();
  bool reinsert();
  bool turn();
  bool rotate();
  bool regroup();
  bool redraw();
  bool trade();

  // Small sets of kernels in any arrangement (sets.cc).
  int set(std::u16string kinds);
  int set(const Kernels& kernels);
  void members(int node, Kernels& out) const;
  std::pair<int, int> box(int node);
  int build(const Kernels& kernels, int width, int height);
  void take_apart(int node);
  int rebuild(int node, int parent, const Kernels& kernels, std::pair<int, int> box);

  const Problem* problem_;
  int root_ = 0, extra_ = 0, tall_ = 0, mark_ = 0, fresh_node_ = -1, old_root_ = 0;
  bool hopeless_ = false;
  int64_t slack_ = INT64_MAX;
  std::vector<Node> nodes_;
  std::vector<Length> memory_, scratch_;
  std::vector<Slot> slots_;
  std::vector<int> free_, fresh_, stale_, marks_, x_, y_, part_, todo_, spare_, built_;
  std::vector<std::pair<int, Node>> saved_;
  std::unordered_map<std::u16string, int> sets_;
  std::vector<std::vector<Length>> set_curves_;  // heights, then widths
};

}  // namespace wafer
