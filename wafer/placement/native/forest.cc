// Slicing trees whose curves follow every change, as wafer/placement/trees.py has them, in place.
//
// A change recomputes the curves from the changed nodes to the root, each in a slot of its own, and
// stops where a curve comes out as it was. A node that wastes more area than a plan worth measuring
// may is the end of a change, often a few levels up.
#include "forest.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace wafer {

Forest::Forest(const Problem& problem, const int32_t* tree, uint64_t seed)
    : random(seed), problem_(&problem) {
  const int n = problem.kernels, points = problem.points, slots = 6 * n + 64;
  memory_.resize(static_cast<size_t>(slots) * 2 * points);
  scratch_.resize(2 * (points + 1));
  for (int s = 0; s < slots; ++s) {
    Length* at = memory_.data() + static_cast<size_t>(s) * 2 * points;
    slots_.push_back({{at, at + points}, {0, 0}, {false, false}});
  }
  for (int s = slots - 1; s >= n; --s) free_.push_back(s);
  nodes_.assign(2 * n - 1, Node{-1, -1, -1, false, 1, -1, 0});
  marks_.assign(2 * n - 1, 0);
  x_.resize(n), y_.resize(n);
  for (int k = 0; k < n; ++k) {
    Slot& slot = slots_[k];
    std::copy_n(problem.high + static_cast<size_t>(k) * points, points, slot.at[0]);
    slot.known[0] = true;
    while (slot.first[0] < points - 1 && slot.at[0][slot.first[0]] >= points) ++slot.first[0];
    nodes_[k].slot = k;
    nodes_[k].area = problem.curves->area(slot.at[0], points);
  }
  for (int k = 0; k < n; ++k) curve(k, true);
  for (int v = 2 * n - 2; v >= n; --v) spare_.push_back(v);
  root_ = read(tree);
  keep();
}

int Forest::read(const int32_t*& tree) {
  const int token = *tree++;
  if (token >= 0) return token;
  const int node = spare_.back();
  spare_.pop_back();
  nodes_[node].beside = token == -1;
  put(node, true, read(tree));
  put(node, false, read(tree));
  join(node, false);
  return node;
}

void Forest::write(int32_t* tree) const { write(root_, tree); }

void Forest::write(int node, int32_t*& tree) const {
  if (node < problem_->kernels) {
    *tree++ = node;
    return;
  }
  *tree++ = nodes_[node].beside ? -1 : -2;
  write(nodes_[node].left, tree);
  write(nodes_[node].right, tree);
}

const Length* Forest::curve(int node, bool beside) {
  Slot& slot = slots_[nodes_[node].slot];
  if (!slot.known[beside]) {
    problem_->curves->invert(slot.at[!beside], slot.first[!beside], slot.at[beside],
                             scratch_.data(), problem_->points);
    const int last = problem_->points - 1;
    slot.first[beside] = std::min<int>(slot.at[!beside][last], last);
    slot.known[beside] = true;
  }
  return slot.at[beside];
}

// Computes a node's curve from its parts'. False if it is as it was (and `compare`).
bool Forest::join(int node, bool compare) {
  Node& t = nodes_[node];
  const int points = problem_->points, side = t.beside;
  const Length *a = curve(t.left, side), *b = curve(t.right, side);
  Slot& slot = slots_[free_.back()];
  Length* out = slot.at[side];
  problem_->curves->add(a, b, out, points);
  t.count = nodes_[t.left].count + nodes_[t.right].count;
  t.area = nodes_[t.left].area + nodes_[t.right].area;
  if (compare && node != fresh_node_ && slots_[t.slot].known[side] &&
      !std::memcmp(slots_[t.slot].at[side], out, points * sizeof(Length)))
    return false;
  int first = std::max(slots_[nodes_[t.left].slot].first[side],
                       slots_[nodes_[t.right].slot].first[side]);
  while (first < points - 1 && out[first] >= points) ++first;
  slot.first[side] = first, slot.known[side] = true, slot.known[!side] = false;
  if (t.slot >= 0) stale_.push_back(t.slot);
  t.slot = free_.back();
  fresh_.push_back(t.slot);
  free_.pop_back();
  if (problem_->curves->area(out, points) - t.area > slack_) hopeless_ = true;
  return true;
}

bool Forest::above(int a, int b) const {
  for (; b >= 0; b = nodes_[b].up)
    if (a == b) return true;
  return false;
}

void Forest::put(int parent, bool left, int node) {
  if (parent < 0) {
    root_ = node;
  } else {
    (left ? nodes_[parent].left : nodes_[parent].right) = node;
  }
  nodes_[node].up = parent;
}

void Forest::replace(int parent, int from, int to) {
  if (parent >= 0) save(parent);
  save(to);
  put(parent, parent < 0 || nodes_[parent].left == from, to);
}

// Recomputes from a node to the root, and stops early only beyond `must`.
void Forest::refresh(int from, int must) {
  bool pending = true;
  for (int v = from; v >= 0; v = nodes_[v].up) {
    save(v);
    const bool changed = join(v, true);
    if (v == must) pending = false;
    if (hopeless_ || (!changed && !pending)) return;
  }
}

// Recomputes from two nodes, what both lie in last.
void Forest::refresh_two(int a, int b) {
  if (above(a, b)) return refresh(b, a);
  if (above(b, a)) return refresh(a, b);
  ++mark_;
  for (int v = a; v >= 0; v = nodes_[v].up) marks_[v] = mark_;
  int common = b;
  while (marks_[common] != mark_) common = nodes_[common].up;
  bool changed = false;
  for (int from : {a, b}) {
    int v = from;
    for (; v != common; v = nodes_[v].up) {
      save(v);
      if (!join(v, true)) break;
      if (hopeless_) return;
    }
    changed = changed || v == common;
  }
  if (changed) refresh(common, common);
}

void Forest::exchange(int a, int b) {
  const int above_a = nodes_[a].up, above_b = nodes_[b].up;
  for (int v : {above_a, above_b, a, b}) save(v);
  if (above_a == above_b) return std::swap(nodes_[above_a].left, nodes_[above_a].right);
  const bool left_a = nodes_[above_a].left == a, left_b = nodes_[above_b].left == b;
  put(above_a, left_a, b);
  put(above_b, left_b, a);
  const int n = problem_->kernels;
  if (a >= n || b >= n || problem_->kinds[a] != problem_->kinds[b]) refresh_two(above_a, above_b);
}

void Forest::undo() {
  for (auto it = saved_.rbegin(); it != saved_.rend(); ++it) nodes_[it->first] = it->second;
  free_.insert(free_.end(), fresh_.begin(), fresh_.end());
  root_ = old_root_;
}

void Forest::keep() {
  free_.insert(free_.end(), stale_.begin(), stale_.end());
  fresh_.clear(), stale_.clear(), saved_.clear();
}

bool Forest::change(int64_t slack) {
  saved_.clear(), fresh_.clear(), stale_.clear();
  old_root_ = root_, hopeless_ = false, fresh_node_ = -1, slack_ = slack;
  const int draw = random.below(150);
  return (draw < 35    ? swap()
          : draw < 70  ? reinsert()
          : draw < 86  ? turn()
          : draw < 100 ? rotate()
          : draw < 110 ? regroup()
          : draw < 130 ? redraw()
                       : trade()) &&
         !hopeless_;
}

// Two nodes change places: any two, two kernels, two of a kind, or kernels near each other.
bool Forest::swap() {
  const int n = problem_->kernels, how = random.below(4);
  int a = random.below(how ? n : 2 * n - 1), b = random.below(how ? n : 2 * n - 1);
  if (how == 2) {
    const auto& same = problem_->same[problem_->kinds[a]];
    b = same[random.below(same.size())];
  } else if (how == 3) {
    for (int steps = 1 + random.below(2); steps; --steps) {
      const auto& near = problem_->near[steps == 1 ? a : b];
      if (near.empty()) return false;
      b = near[random.below(near.size())];
    }
  }
  if (above(a, b) || above(b, a)) return false;
  exchange(a, b);
  return true;
}

// A node leaves its place and joins another one, often where a neighbour is.
bool Forest::reinsert() {
  const int n = problem_->kernels;
  const int a = random.below(2 * n - 1);
  if (a == root_ || 3 * nodes_[a].count > n + 3) return false;
  int b = random.below(2 * n - 1);
  if (random.unit() < 0.5) {
    int kernel = a;
    while (kernel >= n) kernel = random.below(2) ? nodes_[kernel].left : nodes_[kernel].right;
    const auto& near = problem_->near[kernel];
    if (near.empty()) return false;
    b = near[random.below(near.size())];
    while (random.unit() < 0.4 && nodes_[b].up >= 0) b = nodes_[b].up;
  }
  const int parent = nodes_[a].up;
  if (above(a, b) || b == parent) return false;
  const int sibling = nodes_[parent].left == a ? nodes_[parent].right : nodes_[parent].left;
  const int before = nodes_[parent].up;
  fresh_node_ = parent;  // its old curve belongs to another place
  replace(before, parent, sibling);
  replace(nodes_[b].up, b, parent);
  save(a), save(b);
  nodes_[parent].beside = random.below(2);
  const bool left = random.below(2);
  put(parent, left, a);
  put(parent, !left, b);
  if (before < 0) {
    refresh(parent, parent);
  } else {
    refresh_two(before, parent);
  }
  return true;
}

// A node is cut the other way, or its parts change sides.
bool Forest::turn() {
  const int v = problem_->kernels + random.below(problem_->kernels - 1);
  save(v);
  if (random.below(2)) {
    std::swap(nodes_[v].left, nodes_[v].right);
  } else {
    nodes_[v].beside = !nodes_[v].beside;
    refresh(v, v);
  }
  return true;
}

// ((y, z), x) becomes (y, (z, x)), or the cuts of a node and its part change places.
bool Forest::rotate() {
  const int n = problem_->kernels, v = n + random.below(n - 1);
  const bool left = random.below(2);
  const int c = left ? nodes_[v].left : nodes_[v].right;
  if (c < n) return false;
  save(v), save(c);
  if (random.below(4) == 0) {
    if (nodes_[v].beside == nodes_[c].beside) return false;
    std::swap(nodes_[v].beside, nodes_[c].beside);
  } else {
    const int x = left ? nodes_[v].right : nodes_[v].left;
    const int y = left ? nodes_[c].left : nodes_[c].right;
    const int z = left ? nodes_[c].right : nodes_[c].left;
    save(x), save(y), save(z);
    put(v, left, y), put(v, !left, c);
    put(c, left, z), put(c, !left, x);
    if (random.below(3) == 0) nodes_[c].beside = !nodes_[c].beside;
  }
  refresh(c, v);
  return true;
}

// Two parts of what is cut the same way change places, which keeps the size of the whole.
bool Forest::regroup() {
  const int n = problem_->kernels;
  int v = n + random.below(n - 1);
  const bool beside = nodes_[v].beside;
  while (nodes_[v].up >= 0 && nodes_[nodes_[v].up].beside == beside) v = nodes_[v].up;
  part_.clear(), todo_.assign(1, v);
  while (!todo_.empty()) {
    const int node = todo_.back();
    todo_.pop_back();
    if (node >= n && nodes_[node].beside == beside) {
      todo_.push_back(nodes_[node].right), todo_.push_back(nodes_[node].left);
    } else {
      part_.push_back(node);
    }
  }
  const int a = part_[random.below(part_.size())], b = part_[random.below(part_.size())];
  if (part_.size() < 3 || a == b) return false;
  exchange(a, b);
  return true;
}

int Forest::over() {
  const Length* high = curve(root_, false);
  const int width = problem_->width, height = problem_->height;
  int best = problem_->points;
  for (int w = width; w < problem_->points && w - width < best; ++w) {
    const int now = w - width + std::max(0, high[w] - height);
    if (high[w] >= problem_->points || now >= best) continue;
    best = now, extra_ = w - width, tall_ = std::max<int>(high[w], height);
  }
  return best;
}

void Forest::place(int node, int x, int y, int width, int height) {
  if (node < problem_->kernels) {
    x_[node] = 2 * x + width, y_[node] = 2 * y + height;
    return;
  }
  const Node& t = nodes_[node];
  if (t.beside) {
    const int a = curve(t.left, true)[height], b = curve(t.right, true)[height];
    place(t.left, x, y, a, height);
    place(t.right, x + a, y, b, height);
  } else {
    const int a = curve(t.left, false)[width], b = curve(t.right, false)[width];
    place(t.left, x, y, width, a);
    place(t.right, x, y + a, width, b);
  }
}

double Forest::length() {
  place(root_, 0, 0, problem_->width + extra_, tall_);
  int64_t sum = 0;
  for (const auto& [a, b] : problem_->edges)
    sum += std::abs(x_[a] - x_[b]) + std::abs(y_[a] - y_[b]);
  return sum / 2.0;
}

}  // namespace wafer
