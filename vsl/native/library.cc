// Part of every native library: what it says of itself.
#include "runtime.h"

// Digest of the files it was built from, which library.py looks for in the file; see sources.py.
extern "C" const char wafer_native_sources[] = WAFER_SOURCES;

// The instruction set chosen on this machine.
extern "C" const char* wafer_native_target() {
  [[maybe_unused]] static const char* const avx2 = "avx2";
  [[maybe_unused]] static const char* const avx512 = "avx512";
  return wafer::BestOf<const char*>("baseline", WAFER_IF_AVX2(avx2), WAFER_IF_AVX512(avx512));
}
