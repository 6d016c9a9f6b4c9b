// The order in which products read a pattern: SELL-C-sigma (Kreutzer et al. 2014) within blocks.
//
// Outputs are cut into groups, inputs into blocks whose rows of a tile fit the first-level cache. In
// a segment (group x block) outputs are sorted by their number of kept inputs there and walked four
// at a time, in slices. A slice has as many slots per output as its longest one; the values and the
// places of the inputs lie in the order of the slots, so both are read from front to back.
// Like tile.h, this header must define no inline function or template.
#ifndef WAFER_SPARSITY_WALK_H_
#define WAFER_SPARSITY_WALK_H_

#include <cstdint>

namespace wafer {

constexpr int kSlice = 4;          // outputs walked together
constexpr int64_t kGroup = 512;    // outputs whose sums are kept at a time, in the L2 cache
constexpr int64_t kBlock = 176;    // inputs read at random at a time, mostly in the L1 cache
constexpr int kPanel = 16;
constexpr uint16_t kAlike = 1 << 15;   // of rows[0]: all four outputs keep the same inputs
constexpr uint16_t kPanels = 1 << 14;  // and these are whole panels: kPanel from a multiple of it
constexpr uint16_t kRowBits = kPanels - 1;

// Outputs `rows` of the group, longest first; its size where there is no such output. Each has
// counts[c] values in the block, behind those of the blocks before; slot j of output c is
// slots + kSlice * j + c.
struct Slice {
  uint16_t rows[kSlice];
  uint8_t counts[kSlice];
  int32_t slots;
};
static_assert(sizeof(Slice) == 16 && kBlock < 256, "as sparsity/kernels/pattern.py has it");

struct Walk {
  const Slice* slices;     // [groups][blocks][group / kSlice]
  const uint8_t* offsets;  // [slots]: input within the block; kBlock, a row of zeros, where none is
  int64_t rows;            // outputs
  int64_t group, groups, blocks;
};

}  // namespace wafer

#endif  // WAFER_SPARSITY_WALK_H_
