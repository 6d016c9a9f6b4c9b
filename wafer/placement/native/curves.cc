// The loops over points, which the compiler vectorises for each instruction set. Nothing of the
// standard library: the linker must not share a function between targets.
#include "curves.h"

#include "vectors.h"

namespace wafer {
namespace {

constexpr int kBlock = 32;  // points are a multiple
constexpr int32_t kNone = 1 << 30;

inline Length min(Length a, Length b) { return a < b ? a : b; }

// The first point of the curve's last step.
int last_step(const Length* curve, int points) {
  int low = 0, high = points - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (curve[middle] > curve[points - 1]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void add(const Length* a, const Length* b, Length* out, int points) {
  for (int i = 0; i < points; ++i)
    out[i] = min(static_cast<Length>(a[i] + b[i]), static_cast<Length>(points));
}

void add_least(const Length* a, const Length* b, Length* out, int points) {
  for (int i = 0; i < points; ++i) out[i] = min(out[i], static_cast<Length>(a[i] + b[i]));
}

void least(const Length* a, Length* out, int points) {
  for (int i = 0; i < points; ++i) out[i] = min(out[i], a[i]);
}

void least_of_two(const Length* __restrict from, int step, Length* __restrict to, int points) {
  for (int i = 0; i < step; ++i) to[i] = from[i];
  for (int i = step; i < points; ++i) to[i] = min(from[i], from[i - step]);
}

// Each width is written where its height is, the least one last; then a running minimum, first over
// blocks by doubling: no branches and hardly a dependence from one point to the next.
void invert(const Length* __restrict curve, int first, Length* __restrict out,
            Length* __restrict scratch, int points) {
  Length *from = scratch, *to = scratch + points + 1;
  for (int i = 0; i <= points; ++i) from[i] = static_cast<Length>(points);
  for (int w = last_step(curve, points); w >= first; --w) from[curve[w]] = static_cast<Length>(w);
  for (int step = 1; step < kBlock; step *= 2) {
    least_of_two(from, step, to, points);
    Length* const written = to;
    to = from, from = written;
  }
  Length last = static_cast<Length>(points);
  for (int begin = 0; begin < points; begin += kBlock) {
    for (int i = begin; i < begin + kBlock; ++i) out[i] = min(from[i], last);
    last = out[begin + kBlock - 1];
  }
}

int64_t area(const Length* curve, int points) {
  int32_t smallest = kNone;
  for (int i = 0; i < points; ++i) {
    const int32_t none = curve[i] >= points ? kNone : 0;
    const int32_t now = (i * static_cast<int32_t>(curve[i])) | none;
    smallest = now < smallest ? now : smallest;
  }
  return smallest;
}

}  // namespace

extern const Curves WAFER_TARGET;
const Curves WAFER_TARGET = {add, add_least, least, invert, area};

}  // namespace wafer
