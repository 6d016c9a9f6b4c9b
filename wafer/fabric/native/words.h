// A timing program laid out in words of 512 PEs; shared by the host side and the word kernels.
#pragma once
#include <cstdint>

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are only passed inside one file

namespace wafer {

using V = uint64_t __attribute__((vector_size(64)));

struct Pair {
  int a, b;
};

constexpr int kMaxColors = 24, kMaxRamp = 8, kMaxSlots = 64, kMaxPairs = kMaxSlots * kMaxColors;

// Read from the header buffer that wafer/fabric/native/__init__.py writes. Plain arrays: a library
// template instantiated in a file built for one instruction set could be linked into another's.
struct Shape {
  int rows, blocks, colors, ramp, bits, slots, vertical;
  int64_t max_cycles;
  int n_ports, n_reads, n_writes;
  int depths[kMaxColors], merges[kMaxColors], shared[5];  // shared[p]: several colors use port p
  Pair ports[kMaxColors * 5];                              // (color, port), ordered
  Pair reads[kMaxPairs], writes[kMaxPairs];                // (slot, color)
  int masks() const { return n_ports + colors + n_reads + n_writes + slots * (1 + bits); }
};

struct Result {
  int64_t cycles = 0;
  bool fault = false, stuck = false;
};

// Runs rows [first, last); `masks` holds [rows, blocks, masks()] vectors.
using RunRows = Result (*)(const Shape&, const V* masks, int first, int last);

}  // namespace wafer
