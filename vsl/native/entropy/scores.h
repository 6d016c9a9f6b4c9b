// What a per-target object offers for cross-entropy: rows of scores, both ways.
//
// Included by objects built for different instruction sets, so it must define no inline function or
// template (see block.h).
#ifndef WAFER_VSL_NATIVE_ENTROPY_SCORES_H_
#define WAFER_VSL_NATIVE_ENTROPY_SCORES_H_

#include <cstdint>

namespace wafer {

// One call: T rows of V scores.
struct Scores {
  int64_t classes;        // V
  const float* x;         // [T, V]
  const int32_t* labels;  // [T], within 0 .. V - 1
};

struct EntropyKernels {
  // Rows [from, to) of log(sum(exp(x))), and 1 where the label is the first of the largest scores.
  void (*forward)(const Scores& call, int64_t from, int64_t to, float* norm, float* best);
  // Rows [from, to) of dx = d * (softmax(x) - 1 at the label); d, norm: [T].
  void (*backward)(const Scores& call, int64_t from, int64_t to, const float* norm, const float* d,
                   float* dx);
};

}  // namespace wafer

extern "C" {
extern const wafer::EntropyKernels wafer_tile_avx512_entropy;
extern const wafer::EntropyKernels wafer_tile_avx2_entropy;
extern const wafer::EntropyKernels wafer_tile_baseline_entropy;
}

#endif  // WAFER_VSL_NATIVE_ENTROPY_SCORES_H_
