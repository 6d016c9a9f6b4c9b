// Shape curves: least height for each width or least width for each height, falling, in PEs. The
// number of points is a multiple of 32 and stands for "none", too.
#pragma once
#include <cstdint>

namespace wafer {

using Length = int16_t;

// Built once per instruction set.
struct Curves {
  // out = min(a + b, points)
  void (*add)(const Length* a, const Length* b, Length* out, int points);
  // out = min(out, a + b)
  void (*add_least)(const Length* a, const Length* b, Length* out, int points);
  // out = min(out, a)
  void (*least)(const Length* a, Length* out, int points);
  // out[h] = least w >= first with curve[w] <= h; `scratch` holds 2 * (points + 1).
  void (*invert)(const Length* curve, int first, Length* out, Length* scratch, int points);
  // least w * curve[w] where there is one
  int64_t (*area)(const Length* curve, int points);
};

}  // namespace wafer
