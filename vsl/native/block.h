// What a per-target object offers: attention of one block of queries of one head.
//
// Included by objects built for different instruction sets, so it must define no inline function or
// template: the linker keeps one copy of those, perhaps the one an old CPU cannot run.
#ifndef WAFER_VSL_NATIVE_BLOCK_H_
#define WAFER_VSL_NATIVE_BLOCK_H_

#include <cstdint>

namespace wafer {

constexpr int kTile = 64;       // queries, and keys, of a tile
constexpr int kWidthStep = 16;  // heads are this many features wide, or a multiple

// One call. Letters as in vsl: T queries, S keys, N query heads, K key heads, H features.
struct Attention {
  int64_t queries, keys, heads, key_heads, width;
  const float* q;         // [T, N, H]; queries that see nothing, and no keys, may hold NaN
  const float* k;         // [S, K, H]
  const float* v;         // [S, K, H]
  const int32_t* low;     // [T] first key slot that a query sees
  const int32_t* high;    // [T] one past the last
  const float* profile;   // [N, profile_width] bias by key slot - query slot, or nullptr
  int64_t profile_width;
  int64_t profile_zero;   // index of distance 0; readable for kTile entries beyond any distance used
  const uint32_t* noise;  // [T] state of the dropout bits, or nullptr without dropout
  const int32_t* position;  // [S padded to kTile] of the keys in their sequences, -1 at no key
  uint32_t threshold;     // bits below it keep a probability
  float keep;             // factor of a kept probability
  float scale;
};

// Keys and values of one key head, in blocks of kTile with 0 behind key S; block j lies at place
// j % places.
struct Packed {
  int64_t places;
  float* k;   // [places][kTile][H]; nullptr when not wanted
  float* kt;  // [places][H][kTile]
  float* v;   // [places][kTile][H]; nullptr when not wanted
  float* vt;  // [places][H][kTile]; nullptr when not wanted
};

// What the backward pass of a block reads and adds to.
struct Backward {
  const float* out;    // [T, N, H]
  const float* d_out;  // [T, N, H]
  const float* lse;    // [N, T]
  float* dq;           // [T, N, H], written
  float* dk;           // [places][kTile][H] of this key head, added to
  float* dv;           // [places][kTile][H], added to
  float* d_profile;    // [profile_width] of this head, added to; or nullptr
};

struct BlockKernels {
  // Packs block j of a key head.
  void (*pack)(const Attention& call, int64_t key_head, int64_t j, const Packed& packed);
  // Output rows of query block i, head n: out [T, N, H]; lse [N, T] the log of the sum of
  // exponentials, or 1e30 for a query that sees nothing.
  void (*forward)(const Attention& call, const Packed& packed, int64_t i, int64_t n,
                  float* scratch, float* out, float* lse);
  void (*backward)(const Attention& call, const Packed& packed, int64_t i, int64_t n,
                   float* scratch, const Backward& io);
};

// Floats of scratch that forward and backward need for heads of `width` features.
constexpr int64_t ScratchFloats(int64_t width) { return 4 * kTile * width + 4 * kTile * kTile; }

}  // namespace wafer

extern "C" {
extern const wafer::BlockKernels wafer_tile_avx512;
extern const wafer::BlockKernels wafer_tile_avx2;
extern const wafer::BlockKernels wafer_tile_baseline;
}

#endif  // WAFER_VSL_NATIVE_BLOCK_H_
