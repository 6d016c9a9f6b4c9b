// Changes that rearrange a few kernels at once inside the rectangles they have.
//
// Where hardly any area is free, single steps lead through plans that do not fit. The exact table
// of a small set of kernels (all cuts of all subsets) says which arrangements fit a rectangle; one
// of them is drawn.
#include <algorithm>

#include "forest.h"

namespace wafer {
namespace {

constexpr size_t kMostSets = 8'000;  // 3 KB each; more are forgotten
constexpr int kMostDrawn = 5, kMostTraded = 3;

}  // namespace

// Index of the curves of a set, given the sorted kinds of its kernels.
int Forest::set(std::u16string kinds) {
  if (const auto known = sets_.find(kinds); known != sets_.end()) return known->second;
  const int points = problem_->points, size = static_cast<int>(kinds.size());
  std::vector<Length> out(2 * points, static_cast<Length>(points));
  Length* at[2] = {out.data(), out.data() + points};
  const Curves& curves = *problem_->curves;
  if (size == 1) {
    const int kernel = problem_->same[kinds[0]][0];
    for (int side : {0, 1}) std::copy_n(slots_[kernel].at[side], points, at[side]);
  } else {
    for (int mask = 1; mask < 1 << (size - 1); ++mask) {
      std::u16string parts[2];
      for (int i = 0; i < size; ++i) parts[mask >> i & 1] += kinds[i];
      const int a = set(parts[0]), b = set(parts[1]);
      for (int side : {0, 1})
        curves.add_least(set_curves_[a].data() + side * points,
                         set_curves_[b].data() + side * points, at[side], points);
    }
    std::vector<Length> turned(2 * points);
    for (int side : {0, 1})
      curves.invert(at[!side], 0, turned.data() + side * points, scratch_.data(), points);
    for (int side : {0, 1}) curves.least(turned.data() + side * points, at[side], points);
  }
  set_curves_.push_back(std::move(out));
  return sets_[std::move(kinds)] = static_cast<int>(set_curves_.size()) - 1;
}

int Forest::set(const Kernels& kernels) {
  std::u16string kinds;
  for (int k : kernels) kinds += static_cast<char16_t>(problem_->kinds[k]);
  std::sort(kinds.begin(), kinds.end());
  return set(std::move(kinds));
}

void Forest::members(int node, Kernels& out) const {
  if (node < problem_->kernels) return out.push_back(node);
  members(nodes_[node].left, out);
  members(nodes_[node].right, out);
}

// Width and height of a node in the present plan.
std::pair<int, int> Forest::box(int node) {
  todo_.clear();
  for (int v = node; v != root_; v = nodes_[v].up) todo_.push_back(v);
  over();
  int width = problem_->width + extra_, height = tall_;
  for (auto it = todo_.rbegin(); it != todo_.rend(); ++it) {
    if (nodes_[nodes_[*it].up].beside) {
      width = curve(*it, true)[height];
    } else {
      height = curve(*it, false)[width];
    }
  }
  return {width, height};
}

// A random arrangement of kernels that fits, from spare nodes.
int Forest::build(const Kernels& kernels, int width, int height) {
  if (kernels.size() == 1) return kernels[0];
  const int points = problem_->points, size = static_cast<int>(kernels.size());
  auto divide = [&](int mask, Kernels (&parts)[2], int (&at)[2]) {
    for (int i = 0; i < size; ++i) parts[mask >> i & 1].push_back(kernels[i]);
    for (int i : {0, 1}) at[i] = set(parts[i]);
  };
  auto need = [&](int at, int side) {
    return set_curves_[at][side * points + (side ? height : width)];
  };
  std::vector<std::pair<int, int>> options;  // (mask, side)
  for (int mask = 1; mask < 1 << (size - 1); ++mask) {
    Kernels parts[2];
    int at[2];
    divide(mask, parts, at);
    for (int side : {0, 1})
      if (need(at[0], side) + need(at[1], side) <= (side ? width : height))
        options.emplace_back(mask, side);
  }
  const auto [mask, side] = options[random.below(options.size())];
  Kernels parts[2];
  int at[2];
  divide(mask, parts, at);
  const int whole = side ? width : height;
  const int first = random.below(2) ? need(at[0], side) : whole - need(at[1], side);
  const int node = spare_.back();
  spare_.pop_back();
  const int a = build(parts[0], side ? first : width, side ? height : first);
  const int b = build(parts[1], side ? whole - first : width, side ? height : whole - first);
  save(a), save(b);
  const bool left = random.below(2);
  nodes_[node].beside = side;
  put(node, left, a), put(node, !left, b);
  built_.push_back(node);
  return node;
}

void Forest::take_apart(int node) {
  save(node);
  if (node < problem_->kernels) return;
  take_apart(nodes_[node].left);
  take_apart(nodes_[node].right);
  spare_.push_back(node);
}

// Other kernels in place of a node, arranged at random in its rectangle.
int Forest::rebuild(int node, int parent, const Kernels& kernels, std::pair<int, int> box) {
  const bool left = parent >= 0 && nodes_[parent].left == node;
  if (parent >= 0) save(parent);
  spare_.clear(), built_.clear();
  take_apart(node);
  const int top = build(kernels, box.first, box.second);
  save(top);
  put(parent, left, top);
  for (int v : built_) join(v, false);
  return top;
}

bool Forest::redraw() {
  if (sets_.size() > kMostSets) sets_.clear(), set_curves_.clear();
  const int v = problem_->kernels + random.below(problem_->kernels - 1);
  if (nodes_[v].count > kMostDrawn) return false;
  Kernels kernels;
  members(v, kernels);
  const int parent = nodes_[v].up;
  rebuild(v, parent, kernels, box(v));
  if (parent >= 0 && !hopeless_) refresh(parent, parent);
  return true;
}

// Two kernels change places, and what lies around each is rearranged in its rectangle.
bool Forest::trade() {
  if (sets_.size() > kMostSets) sets_.clear(), set_curves_.clear();
  const int n = problem_->kernels;
  const int a = random.below(n);
  int b = random.below(n);
  if (random.unit() < 0.6) {
    b = a;
    for (int steps = 1 + random.below(3); steps; --steps) {
      const auto& near = problem_->near[b];
      if (near.empty()) return false;
      b = near[random.below(near.size())];
    }
  }
  if (problem_->kinds[a] == problem_->kinds[b]) return false;
  int top[2] = {a, b};
  for (int& v : top)
    for (int steps = random.below(3); steps; --steps)
      if (nodes_[v].up >= 0 && nodes_[nodes_[v].up].count <= kMostTraded) v = nodes_[v].up;
  if (above(top[0], top[1]) || above(top[1], top[0])) return false;
  Kernels kernels[2];
  std::pair<int, int> boxes[2];
  for (int i : {0, 1}) {
    members(top[i], kernels[i]);
    std::replace(kernels[i].begin(), kernels[i].end(), i ? b : a, i ? a : b);
    boxes[i] = box(top[i]);
    if (set_curves_[set(kernels[i])][boxes[i].first] > boxes[i].second) return false;
  }
  const int parents[2] = {nodes_[top[0]].up, nodes_[top[1]].up};
  const bool left = nodes_[parents[0]].left == top[0];
  int built[2];
  for (int i : {0, 1}) built[i] = rebuild(top[i], parents[i], kernels[i], boxes[i]);
  if (parents[0] == parents[1])
    put(parents[0], left, built[0]), put(parents[0], !left, built[1]);
  if (!hopeless_) refresh_two(parents[0], parents[1]);
  return true;
}

}  // namespace wafer
