// Attention over the keys that each query sees: forward and backward, as XLA FFI handlers.
//
// The reference is vsl/implementations/blocks.py. The forward pass shares out (query block, head) pairs. The
// backward pass shares out key heads, each with its own sums of dk and dv; when there are few key
// heads each is cut into a number of chunks of query blocks that depends on the shapes alone, and
// the chunks are added in order: the result does not depend on the number of threads.
#include <algorithm>
#include <cstring>
#include <string>

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

constexpr int64_t kTasks = 8;  // backward tasks wanted at least

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

// The packed keys and values of every key head.
class PackedHeads {
 public:
  PackedHeads(const Attention& call, bool backward)
      : call_(call),
        size_(Blocks(call.keys) * kTile * call.width),
        backward_(backward),
        scratch_(sizeof(float) * (backward ? 3 : 2) * size_ * call.key_heads) {}
  bool ok() const { return scratch_.ok(); }
  // Fills them; comes before every use.
  Phase Packing() const {
    return {call_.key_heads * Blocks(call_.keys), [this](int64_t item) {
              const int64_t key_head = item % call_.key_heads;  // neighbours in memory
              Kernels().pack(call_, key_head, item / call_.key_heads, head(key_head));
            }};
  }
  Packed head(int64_t key_head) const {
    float* at = scratch_.floats() + key_head * (backward_ ? 3 : 2) * size_;
    if (backward_) return {at, at + size_, nullptr, at + 2 * size_};
    return {nullptr, at, at + size_, nullptr};
  }

 private:
  const Attention& call_;
  int64_t size_;
  bool backward_;
  Scratch scratch_;
};

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
  const PackedHeads packed(call, false);
  if (!packed.ok()) return NoMemory();
  const int64_t blocks = Blocks(call.queries), group = call.heads / call.key_heads;
  std::atomic<bool> failed{false};
  const auto attend = [&](int64_t item) {
    const Scratch scratch(sizeof(float) * ScratchFloats(call.width));
    if (!scratch.ok()) return failed.store(true);
    const int64_t n = item % call.heads;
    Kernels().forward(call, packed.head(n / group), item / call.heads, n, scratch.floats(),
                      out->typed_data(), lse->typed_data());
  };
  ParallelPhases(pool, {packed.Packing(), {call.heads * blocks, attend}});
  return failed ? NoMemory() : ffi::Error::Success();
}

// Sums the chunks of dk or dv of one key block into the result [S, K, H].
void Finish(const Attention& call, const float* parts, int64_t chunks, int64_t size, int64_t key_head,
            int64_t j, float* result) {
  const int64_t rows = std::min<int64_t>(kTile, call.keys - j * kTile);
  for (int64_t r = 0; r < rows; ++r) {
    float* to = result + ((j * kTile + r) * call.key_heads + key_head) * call.width;
    const float* from = parts + key_head * chunks * size + (j * kTile + r) * call.width;
    std::memcpy(to, from, sizeof(float) * call.width);
    for (int64_t c = 1; c < chunks; ++c) {
      for (int64_t h = 0; h < call.width; ++h) to[h] += from[c * size + h];
    }
  }
}

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
  const int64_t blocks = Blocks(call.queries), key_blocks = Blocks(call.keys);
  const int64_t group = call.heads / call.key_heads;
  // Chunks would share a head's profile gradient: one then.
  const int64_t wanted = call.profile ? 1 : (kTasks + call.key_heads - 1) / call.key_heads;
  const int64_t chunks = std::max<int64_t>(1, std::min(wanted, blocks));
  const int64_t size = key_blocks * kTile * call.width;
  const PackedHeads packed(call, true);
  const Scratch sums(sizeof(float) * 2 * call.key_heads * chunks * size);
  if (!packed.ok() || !sums.ok()) return NoMemory();
  float* dk_parts = sums.floats();
  float* dv_parts = dk_parts + call.key_heads * chunks * size;
  std::atomic<bool> failed{false};
  const auto differentiate = [&](int64_t item) {
    const int64_t key_head = item / chunks, chunk = item % chunks;
    const Scratch scratch(sizeof(float) * ScratchFloats(call.width));
    if (!scratch.ok()) return failed.store(true);
    Backward io{out.typed_data(), d_out.typed_data(), lse.typed_data(), dq->typed_data(),
                dk_parts + item * size, dv_parts + item * size, nullptr};
    std::memset(io.dk, 0, sizeof(float) * size);
    std::memset(io.dv, 0, sizeof(float) * size);
    for (int64_t n = key_head * group; n < (key_head + 1) * group; ++n) {
      if (call.profile) {
        io.d_profile = d_profile->typed_data() + n * call.profile_width;
        std::memset(io.d_profile, 0, sizeof(float) * call.profile_width);
      }
      for (int64_t i = chunk * blocks / chunks; i < (chunk + 1) * blocks / chunks; ++i) {
        Kernels().backward(call, packed.head(key_head), i, n, scratch.floats(), io);
      }
    }
  };
  const auto finish = [&](int64_t item) {
    const int64_t key_head = item % call.key_heads, j = item / call.key_heads;
    Finish(call, dk_parts, chunks, size, key_head, j, dk->typed_data());
    Finish(call, dv_parts, chunks, size, key_head, j, dv->typed_data());
  };
  ParallelPhases(pool, {packed.Packing(),
                        {call.key_heads * chunks, differentiate},
                        {call.key_heads * key_blocks, finish}});
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
