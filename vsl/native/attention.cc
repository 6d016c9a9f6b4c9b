// Attention over the keys that each query sees: forward and backward, as XLA FFI handlers.
//
// The reference is vsl/implementations/blocks.py. A task goes through query blocks of a key head and packs
// the keys and values that they see as it comes to them, so that those stay in its core's cache. The
// backward pass cuts the query blocks of a head into a number of runs that depends on the shapes
// alone, and adds what several of them give a key block in order: the result does not depend on the
// number of threads.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "block.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace wafer {
namespace {

namespace ffi = xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;
using U32 = ffi::Buffer<ffi::U32>;
using ResultF32 = ffi::ResultBuffer<ffi::F32>;

constexpr int64_t kTasks = 16;  // backward tasks wanted at least

const BlockKernels& Kernels() {
  static const BlockKernels& kernels = BestOf(
      wafer_tile_baseline, WAFER_IF_AVX2(wafer_tile_avx2), WAFER_IF_AVX512(wafer_tile_avx512));
  return kernels;
}

int64_t Blocks(int64_t tokens) { return (tokens + kTile - 1) / kTile; }

// Settings that are no arrays.
struct Settings {
  float scale, keep;
  int64_t threshold, profile_zero;
};

Attention Describe(const F32& q, const F32& k, const F32& v, const S32& low, const S32& high,
                   const F32& profile, const U32& noise, const S32& position,
                   const Settings& settings) {
  const auto queries = q.dimensions(), keys = k.dimensions();
  Attention call{};
  call.queries = queries[0], call.heads = queries[1], call.width = queries[2];
  call.keys = keys[0], call.key_heads = keys[1];
  call.q = q.typed_data(), call.k = k.typed_data(), call.v = v.typed_data();
  call.low = low.typed_data(), call.high = high.typed_data();
  if (profile.element_count() > 0) {
    call.profile = profile.typed_data(), call.profile_width = profile.dimensions()[1];
    call.profile_zero = settings.profile_zero;
  }
  if (noise.element_count() > 0) {
    call.noise = noise.typed_data();
    call.threshold = static_cast<uint32_t>(settings.threshold), call.keep = settings.keep;
  }
  call.position = position.typed_data();
  call.scale = settings.scale;
  return call;
}

// Layouts come from users: says what would lead outside an array, nullptr when nothing would.
const char* Wrong(const F32& q, const F32& k, const F32& v, const S32& low, const S32& high,
                  const F32& profile, const U32& noise, const S32& position, int64_t zero) {
  const auto queries = q.dimensions(), keys = k.dimensions();
  const auto values = v.dimensions();
  if (queries.size() != 3 || keys.size() != 3 || values.size() != 3 ||
      !std::equal(keys.begin(), keys.end(), values.begin()) || keys[1] < 1 ||
      queries[2] != keys[2] || queries[1] % keys[1] || queries[2] % kWidthStep) {
    return "q, k and v do not fit";
  }
  const size_t tokens = queries[0];
  if (low.element_count() != tokens || high.element_count() != tokens ||
      static_cast<int64_t>(position.element_count()) != Blocks(keys[0]) * kTile ||
      (noise.element_count() != 0 && noise.element_count() != tokens)) {
    return "the layout does not have one entry per token";
  }
  for (size_t slot = keys[0]; slot < position.element_count(); ++slot) {
    if (position.typed_data()[slot] >= 0) return "a key has its position behind the last key";
  }
  const auto wide = profile.dimensions();
  if (profile.element_count() > 0 &&
      (wide.size() != 2 || wide[0] != queries[1] || zero < Blocks(queries[0]) * kTile ||
       zero + Blocks(keys[0]) * kTile > wide[1])) {
    return "the bias does not reach over all distances";
  }
  for (size_t t = 0; t < tokens; ++t) {
    const int32_t first = low.typed_data()[t], end = high.typed_data()[t];
    if (first < end && (first < 0 || end > keys[0])) return "a query sees keys outside the stream";
  }
  return nullptr;
}

bool Same(const F32& a, const F32& b) {
  const auto one = a.dimensions(), other = b.dimensions();
  return std::equal(one.begin(), one.end(), other.begin(), other.end());
}

// Queries times heads.
int64_t Rows(const F32& q) { return q.dimensions()[0] * q.dimensions()[1]; }

ffi::Error Invalid(const char* what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    std::string("native attention: ") + what +
                        "; make layouts with layout_from_lengths, padded_layout or "
                        "layout_from_spans");
}

// Key blocks [first, last) that a query block sees.
struct Seen {
  int64_t first, last;
};

std::vector<Seen> BlocksSeen(const Attention& call) {
  std::vector<Seen> seen(Blocks(call.queries), {INT64_MAX, 0});
  for (int64_t t = 0; t < call.queries; ++t) {
    if (call.low[t] >= call.high[t]) continue;
    Seen& block = seen[t / kTile];
    block.first = std::min<int64_t>(block.first, call.low[t] / kTile);
    block.last = std::max<int64_t>(block.last, Blocks(call.high[t]));
  }
  return seen;
}

// Query blocks [begin, end) that a task goes through in order. At block i, and later, it needs key
// blocks from low(i) on; up to then those below high(i).
class Run {
 public:
  Run(const std::vector<Seen>& seen, int64_t begin, int64_t end)
      : begin(begin), end(end), low_(end - begin + 1), high_(end - begin) {
    int64_t most = 0;
    for (int64_t i = begin; i < end; ++i) high_[i - begin] = most = std::max(most, seen[i].last);
    low_.back() = most;
    for (int64_t i = end; i-- > begin;) {
      low_[i - begin] = std::min(low_[i + 1 - begin], seen[i].first);
      places = std::max(places, high(i) - low(i));
    }
  }
  int64_t low(int64_t i) const { return low_[i - begin]; }
  int64_t high(int64_t i) const { return high_[i - begin]; }
  bool reaches(int64_t j) const { return low_.front() <= j && j < low_.back(); }

  int64_t begin, end;
  int64_t places = 1;  // the most key blocks needed at a time

 private:
  std::vector<int64_t> low_, high_;
};

std::vector<Run> Runs(const Attention& call, int64_t tasks) {
  const std::vector<Seen> seen = BlocksSeen(call);
  const int64_t blocks = seen.size();
  const int64_t wanted = (tasks + call.key_heads - 1) / call.key_heads;
  const int64_t count = std::max<int64_t>(1, std::min(wanted, blocks));
  std::vector<Run> runs;
  for (int64_t c = 0; c < count; ++c) runs.emplace_back(seen, c * blocks / count, (c + 1) * blocks / count);
  return runs;
}

ffi::Error NoMemory() {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "native attention: no memory for scratch");
}

ffi::Error Forward(ffi::ThreadPool pool, F32 q, F32 k, F32 v, S32 low, S32 high, F32 profile,
                   U32 noise, S32 position, ResultF32 out, ResultF32 lse, float scale, float keep,
                   int64_t threshold, int64_t profile_zero) {
  if (const char* wrong = Wrong(q, k, v, low, high, profile, noise, position, profile_zero)) {
    return Invalid(wrong);
  }
  if (!Same(q, *out) || static_cast<int64_t>(lse->element_count()) != Rows(q)) {
    return Invalid("the results do not fit q");
  }
  const Attention call = Describe(q, k, v, low, high, profile, noise, position,
                                  {scale, keep, threshold, profile_zero});
  const int64_t group = call.heads / call.key_heads;
  const std::vector<Run> runs = Runs(call, 8 * pool.num_threads());
  std::atomic<bool> failed{false};
  ParallelFor(pool, call.key_heads * runs.size(), [&](int64_t item) {
    const int64_t key_head = item % call.key_heads;
    const Run& run = runs[item / call.key_heads];
    const int64_t size = run.places * kTile * call.width;
    const Scratch scratch(sizeof(float) * (2 * size + ScratchFloats(call.width)));
    if (!scratch.ok()) return failed.store(true);
    float* kt = scratch.floats();
    const Packed packed{run.places, nullptr, kt, kt + size, nullptr};
    int64_t j = 0;  // the next key block to be packed
    for (int64_t i = run.begin; i < run.end; ++i) {
      for (j = std::max(j, run.low(i)); j < run.high(i); ++j) Kernels().pack(call, key_head, j, packed);
      for (int64_t n = key_head * group; n < (key_head + 1) * group; ++n) {
        Kernels().forward(call, packed, i, n, kt + 2 * size, out->typed_data(), lse->typed_data());
      }
    }
  });
  return failed ? NoMemory() : ffi::Error::Success();
}

// The gradients of keys and values, which runs of query blocks add to.
class KeyGradients {
 public:
  KeyGradients(const Attention& call, const std::vector<Run>& runs, float* dk, float* dv)
      : call_(call), runs_(runs), results_{dk, dv}, givers_(Blocks(call.keys)),
        size_(Blocks(call.keys) * kTile * call.width) {
    for (int64_t j = 0; j < Blocks(call.keys); ++j) {
      for (const Run& run : runs) givers_[j] += run.reaches(j);
    }
  }
  // Floats for what several runs give a block.
  int64_t room() const {
    const bool shares = std::any_of(givers_.begin(), givers_.end(), [](int n) { return n > 1; });
    return shares ? 2 * call_.key_heads * runs_.size() * size_ : 0;
  }

  // Takes what a run gives block j: [kTile][H] of dk and dv, or nullptr for nothing.
  void Take(float* parts, int64_t key_head, int64_t run, int64_t j, const float* dk, const float* dv) const {
    for (int which = 0; which < 2; ++which) {
      const float* from = which == 0 ? dk : dv;
      float* to = givers_[j] == 1 ? Result(which, key_head, j) : Part(parts, which, key_head, run, j);
      const int64_t stride = givers_[j] == 1 ? call_.key_heads * call_.width : call_.width;
      for (int64_t r = 0; r < Rows(j); ++r, to += stride) {
        if (from == nullptr) {
          std::memset(to, 0, sizeof(float) * call_.width);
        } else {
          std::memcpy(to, from + r * call_.width, sizeof(float) * call_.width);
        }
      }
    }
  }

  // Adds up what runs gave block j; 0 if none did.
  void Finish(float* parts, int64_t key_head, int64_t j) const {
    if (givers_[j] == 1) return;
    for (int which = 0; which < 2; ++which) {
      for (int64_t r = 0; r < Rows(j); ++r) {
        float* to = Result(which, key_head, j) + r * call_.key_heads * call_.width;
        std::memset(to, 0, sizeof(float) * call_.width);
        for (size_t run = 0; run < runs_.size(); ++run) {
          if (!runs_[run].reaches(j)) continue;
          const float* from = Part(parts, which, key_head, run, j) + r * call_.width;
          for (int64_t h = 0; h < call_.width; ++h) to[h] += from[h];
        }
      }
    }
  }

 private:
  int64_t Rows(int64_t j) const { return std::min<int64_t>(kTile, call_.keys - j * kTile); }
  float* Result(int which, int64_t key_head, int64_t j) const {
    return results_[which] + (j * kTile * call_.key_heads + key_head) * call_.width;
  }
  float* Part(float* parts, int which, int64_t key_head, int64_t run, int64_t j) const {
    return parts + ((key_head * runs_.size() + run) * 2 + which) * size_ + j * kTile * call_.width;
  }

  const Attention& call_;
  const std::vector<Run>& runs_;
  float* results_[2];
  std::vector<int> givers_;
  int64_t size_;
};

ffi::Error BackwardAll(ffi::ThreadPool pool, F32 q, F32 k, F32 v, S32 low, S32 high, F32 profile,
                       U32 noise, S32 position, F32 out, F32 lse, F32 d_out, ResultF32 dq,
                       ResultF32 dk, ResultF32 dv, ResultF32 d_profile, float scale, float keep,
                       int64_t threshold, int64_t profile_zero) {
  if (const char* wrong = Wrong(q, k, v, low, high, profile, noise, position, profile_zero)) {
    return Invalid(wrong);
  }
  if (!Same(q, out) || !Same(q, d_out) || !Same(q, *dq) || !Same(k, *dk) || !Same(v, *dv) ||
      !Same(profile, *d_profile) || static_cast<int64_t>(lse.element_count()) != Rows(q)) {
    return Invalid("the gradients do not fit q, k and v");
  }
  const Attention call = Describe(q, k, v, low, high, profile, noise, position,
                                  {scale, keep, threshold, profile_zero});
  const int64_t group = call.heads / call.key_heads;
  // Runs would share a head's profile gradient: one then.
  const std::vector<Run> runs = Runs(call, call.profile ? 1 : kTasks);
  const KeyGradients gradients(call, runs, dk->typed_data(), dv->typed_data());
  const Scratch parts(sizeof(float) * gradients.room());
  if (!parts.ok()) return NoMemory();
  std::atomic<bool> failed{false};
  const auto differentiate = [&](int64_t item) {
    const int64_t key_head = item % call.key_heads, number = item / call.key_heads;
    const Run& run = runs[number];
    const int64_t block = kTile * call.width, size = run.places * block;
    const Scratch scratch(sizeof(float) * (5 * size + ScratchFloats(call.width)));
    if (!scratch.ok()) return failed.store(true);
    float* k = scratch.floats();
    const Packed packed{run.places, k, k + size, nullptr, k + 2 * size};
    Backward io{out.typed_data(), d_out.typed_data(), lse.typed_data(), dq->typed_data(),
                k + 3 * size, k + 4 * size, nullptr};
    const int64_t heads = key_head * group;
    if (call.profile) {
      std::memset(d_profile->typed_data() + heads * call.profile_width, 0,
                  sizeof(float) * group * call.profile_width);
    }
    int64_t first = run.low(run.begin), last = 0;  // key blocks at hand: [first, last)
    for (int64_t i = run.begin; i < run.end; ++i) {
      for (last = std::max(last, run.low(i)); last < run.high(i); ++last) {
        Kernels().pack(call, key_head, last, packed);
        std::memset(io.dk + last % run.places * block, 0, sizeof(float) * block);
        std::memset(io.dv + last % run.places * block, 0, sizeof(float) * block);
      }
      for (int64_t n = heads; n < heads + group; ++n) {
        if (call.profile) io.d_profile = d_profile->typed_data() + n * call.profile_width;
        Kernels().backward(call, packed, i, n, k + 5 * size, io);
      }
      for (; first < run.low(i + 1); ++first) {
        const int64_t at = first % run.places * block;
        const bool seen = first < last;
        gradients.Take(parts.floats(), key_head, number, first, seen ? io.dk + at : nullptr,
                       seen ? io.dv + at : nullptr);
      }
    }
  };
  const auto finish = [&](int64_t item) {
    gradients.Finish(parts.floats(), item % call.key_heads, item / call.key_heads);
  };
  ParallelPhases(pool, {{static_cast<int64_t>(call.key_heads * runs.size()), differentiate},
                        {call.key_heads * Blocks(call.keys), finish}});
  return failed ? NoMemory() : ffi::Error::Success();
}

}  // namespace
}  // namespace wafer

namespace ffi = xla::ffi;

// What both directions take: q, k, v, low, high, profile, noise and position, then the settings.
auto Inputs() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<wafer::F32>()
      .Arg<wafer::F32>()
      .Arg<wafer::F32>()
      .Arg<wafer::S32>()
      .Arg<wafer::S32>()
      .Arg<wafer::F32>()
      .Arg<wafer::U32>()
      .Arg<wafer::S32>();
}

template <typename Binding>
auto WithSettings(Binding binding) {
  return std::move(binding)
      .template Attr<float>("scale")
      .template Attr<float>("keep")
      .template Attr<int64_t>("threshold")
      .template Attr<int64_t>("profile_zero");
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_attention_forward, wafer::Forward,
                              WithSettings(Inputs().Ret<wafer::F32>().Ret<wafer::F32>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(wafer_attention_backward, wafer::BackwardAll,
                              WithSettings(Inputs()
                                               .Arg<wafer::F32>()
                                               .Arg<wafer::F32>()
                                               .Arg<wafer::F32>()
                                               .Ret<wafer::F32>()
                                               .Ret<wafer::F32>()
                                               .Ret<wafer::F32>()
                                               .Ret<wafer::F32>()));
