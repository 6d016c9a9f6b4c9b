// What a per-target object offers for attention of one new token to a row's cache.
//
// Included by objects built for different instruction sets, so it must define no inline function or
// template (see block.h).
#ifndef WAFER_VSL_NATIVE_CACHE_ROW_H_
#define WAFER_VSL_NATIVE_CACHE_ROW_H_

#include <cstdint>

namespace wafer {

// A step of B rows, one token each. N query heads, K key heads, C slots, H features, a multiple of 16.
struct Step {
  int64_t heads, key_heads, slots, width;
  bool bf16;              // what the cache holds; else float32
  const float* q;         // [B, N, H]
  const float* k;         // [B, K, H]
  const float* v;         // [B, K, H]
  const int32_t* length;  // [B] slots that are filled; the token takes the next one
  const int32_t* added;   // [B] 0 where a row has no token: its slot and its output become 0
  float scale;
  void* keys;             // [B, K, C, H], written at the token's slot
  void* values;           // [B, K, C, H]
  float* out;             // [B, N, H]
};

struct CacheKernels {
  // Key head `head` of row `row`, and the query heads that use it; `weights` has room for C + 16 floats.
  void (*attend)(const Step& step, int64_t row, int64_t head, float* weights);
};

}  // namespace wafer

extern "C" {
extern const wafer::CacheKernels wafer_tile_avx512_cache;
extern const wafer::CacheKernels wafer_tile_avx2_cache;
extern const wafer::CacheKernels wafer_tile_baseline_cache;
}

#endif  // WAFER_VSL_NATIVE_CACHE_ROW_H_
