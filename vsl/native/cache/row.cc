// Attention of one new token to a row's cache; see row.h. Compiled once per target.
#include "row.h"

#include <limits>

#include "vectors.h"

namespace {

using wafer::Step;

// The scores of a query's keys, then their exponentials, 0 behind the last; returns the sum of these.
template <typename Value>
float Weights(const float* q, const Value* keys, int64_t seen, int64_t width, float scale,
              float* weights) {
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < seen; ++j, keys += width) {
    Floats sum{};
    for (int64_t i = 0; i < width; i += kLanes) sum += Load(q + i) * Load(keys + i);
    weights[j] = SumOfLanes(sum) * scale;
    most = weights[j] > most ? weights[j] : most;
  }
  Store(weights + seen, Splat(-std::numeric_limits<float>::infinity()));
  Floats total{};
  for (int64_t j = 0; j < seen; j += kLanes) {
    const Floats power = Exp(Load(weights + j) - most);
    Store(weights + j, power);
    total += power;
  }
  return SumOfLanes(total);
}

// kParts vectors of features of the weighted sum of the values.
template <int kParts, typename Value>
void Mix(const float* weights, const Value* values, int64_t seen, int64_t width, float factor,
         float* out) {
  Floats sums[kParts] = {};
  for (int64_t j = 0; j < seen; ++j, values += width) {
    WAFER_UNROLL
    for (int i = 0; i < kParts; ++i) sums[i] += weights[j] * Load(values + i * kLanes);
  }
  WAFER_UNROLL
  for (int i = 0; i < kParts; ++i) Store(out + i * kLanes, sums[i] * factor);
}

// Asks for memory: each head's is too short for a processor to see that it is read in order.
template <typename Value>
void Ask(const Value* first, int64_t count) {
  const auto* at = reinterpret_cast<const char*>(first);
  for (const char* const end = at + count * int64_t{sizeof(Value)}; at < end; at += 64) __builtin_prefetch(at);
}

template <typename Value>
void AttendAs(const Step& step, int64_t row, int64_t head, float* weights) {
  const int64_t group = step.heads / step.key_heads, width = step.width, slot = step.length[row];
  const int64_t cache = (row * step.key_heads + head) * step.slots * width;
  auto* const keys = static_cast<Value*>(step.keys) + cache;
  auto* const values = static_cast<Value*>(step.values) + cache;
  const bool real = step.added[row] > 0, fits = slot >= 0 && slot < step.slots;
  Ask(values, slot * width);
  Ask(keys + step.slots * width, slot * width);  // the next head's
  const int64_t token = (row * step.key_heads + head) * width;
  for (int64_t i = 0; fits && i < width; i += kLanes) {
    Store(keys + slot * width + i, real ? Load(step.k + token + i) : Floats{});
    Store(values + slot * width + i, real ? Load(step.v + token + i) : Floats{});
  }
  for (int64_t n = head * group; n < (head + 1) * group; ++n) {
    float* const out = step.out + (row * step.heads + n) * width;
    if (!real || !fits) {
      const Floats wrong = Splat(real ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
      for (int64_t i = 0; i < width; i += kLanes) Store(out + i, wrong);
      continue;
    }
    const float* const q = step.q + (row * step.heads + n) * width;
    const float factor = 1 / Weights(q, keys, slot + 1, width, step.scale, weights);
    int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
      Mix<4>(weights, values + i, slot + 1, width, factor, out + i);
    }
    for (; i < width; i += kLanes) Mix<1>(weights, values + i, slot + 1, width, factor, out + i);
  }
}

void Attend(const Step& step, int64_t row, int64_t head, float* weights) {
  (step.bf16 ? AttendAs<uint16_t> : AttendAs<float>)(step, row, head, weights);
}

}  // namespace

extern "C" const wafer::CacheKernels WAFER_JOIN(WAFER_TARGET, _cache) = {Attend};
