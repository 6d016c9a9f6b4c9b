// Vectors in large pages: the PEs' state spans thousands of small ones, more than a core remembers.
#pragma once
#include <cstdlib>
#include <new>
#include <vector>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace wafer::csl {

template <class T>
struct LargePages {
  using value_type = T;
  LargePages() = default;
  template <class U>
  LargePages(const LargePages<U>&) {}

  T* allocate(size_t count) {
    constexpr size_t kPage = size_t(1) << 21;
    const size_t bytes = count * sizeof(T);
    const size_t align = bytes < kPage ? 64 : kPage;
    void* const out = std::aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!out) throw std::bad_alloc();
#ifdef __linux__
    if (bytes >= kPage) madvise(out, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(out);
  }
  void deallocate(T* at, size_t) { std::free(at); }

  friend bool operator==(const LargePages&, const LargePages&) { return true; }
  friend bool operator!=(const LargePages&, const LargePages&) { return false; }
};

template <class T>
using Arena = std::vector<T, LargePages<T>>;

}  // namespace wafer::csl
