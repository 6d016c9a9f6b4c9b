// Cross-entropy of rows of scores; see scores.h. Compiled once per target with WAFER_TARGET (prefix
// of the exported table) and WAFER_LANES (floats per vector).
//
// A row is read from memory once and then lies in cache for the passes that follow. Everything sits
// in an unnamed namespace, see vectors.h.
#include "scores.h"

#include <cmath>
#include <cstring>

#include "vectors.h"

namespace {

using wafer::Scores;

constexpr float kInfinity = __builtin_inff();

// The vector at x + i; past the end of a row of `classes` its lanes are `fill`.
WAFER_INLINE Floats Part(const float* x, int64_t i, int64_t classes, float fill) {
  if (i + kLanes <= classes) return Load(x + i);
  Floats part = Splat(fill);
  std::memcpy(&part, x + i, sizeof(float) * (classes - i));
  return part;
}

float Largest(const float* x, int64_t classes) {
  Floats most = Splat(-kInfinity);
  for (int64_t i = 0; i < classes; i += kLanes) most = Larger(Part(x, i, classes, -kInfinity), most);
  return LargestLane(most);
}

float LogSumExp(const float* x, int64_t classes, float largest) {
  if (!(std::fabs(largest) < kInfinity)) return largest;
  Floats sum{};
  for (int64_t i = 0; i < classes; i += kLanes) sum += Exp(Part(x, i, classes, -kInfinity) - largest);
  return largest + std::log(SumOfLanes(sum));
}

// Whether the label's score is the largest, and no class before it has the same.
bool IsFirst(const float* x, int64_t label, float largest) {
  if (!(x[label] == largest)) return false;
  int64_t i = 0;
  for (; i + kLanes <= label; i += kLanes) {
    if (LargestLane(Load(x + i)) == largest) return false;
  }
  for (; i < label; ++i) {
    if (x[i] == largest) return false;
  }
  return true;
}

void Forward(const Scores& call, int64_t from, int64_t to, float* norm, float* best) {
  for (int64_t r = from; r < to; ++r) {
    const float* x = call.x + r * call.classes;
    const float largest = Largest(x, call.classes);
    norm[r] = LogSumExp(x, call.classes, largest);
    best[r] = IsFirst(x, call.labels[r], largest) ? 1 : 0;
  }
}

void Backward(const Scores& call, int64_t from, int64_t to, const float* norm, const float* d,
              float* dx) {
  for (int64_t r = from; r < to; ++r) {
    const float* x = call.x + r * call.classes;
    float* out = dx + r * call.classes;
    int64_t i = 0;
    for (; i + kLanes <= call.classes; i += kLanes) {
      Store(out + i, Exp(Load(x + i) - norm[r]) * d[r]);
    }
    if (i < call.classes) {
      const Floats last = Exp(Part(x, i, call.classes, -kInfinity) - norm[r]) * d[r];
      std::memcpy(out + i, &last, sizeof(float) * (call.classes - i));
    }
    out[call.labels[r]] -= d[r];
  }
}

}  // namespace

extern "C" const wafer::EntropyKernels WAFER_JOIN(WAFER_TARGET, _entropy) = {Forward, Backward};
