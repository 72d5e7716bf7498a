#include "trunk_worker/resume_token.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace trunkline::trunk {
namespace {

constexpr char kMagic[] = {'T', 'R'};
constexpr uint8_t kVersion = 1;
constexpr uint8_t kPromptLogprobs = 1, kIncludeSpecial = 2;
constexpr uint64_t kSpentMicrosMax = uint64_t{100} * 366 * 86400 * 1000000;
constexpr size_t kModelDigestMax = 128, kNumericsClassMax = 128;

// Little-endian numbers, strings with a byte of length in front.
class Writer {
 public:
  template <typename T>
  void Number(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }
  void Float(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    Number(bits);
  }
  void Bytes(const Digest& digest) {
    bytes_.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  void Text(const std::string& text) {
    Number(static_cast<uint8_t>(text.size()));
    bytes_ += text;
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

// Reading past the end gives zeros and is told by `whole`.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Number() {
    static_assert(std::is_unsigned_v<T>);
    uint64_t value = 0;
    const absl::string_view bytes = Take(sizeof(T));
    for (size_t i = 0; i < bytes.size(); ++i)
      value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    return static_cast<T>(value);
  }
  float Float() {
    const uint32_t bits = Number<uint32_t>();
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  Digest Bytes() {
    Digest digest{};
    const absl::string_view bytes = Take(digest.size());
    std::memcpy(digest.data(), bytes.data(), bytes.size());
    return digest;
  }
  std::string Text() {
    const absl::string_view bytes = Take(Number<uint8_t>());
    return std::string(bytes.data(), bytes.size());
  }
  bool whole() const { return !short_ && rest_.empty(); }

 private:
  absl::string_view Take(size_t count) {
    if (count > rest_.size()) {
      short_ = true;
      rest_ = {};
      return {};
    }
    const absl::string_view front = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return front;
  }

  absl::string_view rest_;
  bool short_ = false;
};

absl::Status Bad(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("the resume token ", why));
}

// One list for both directions.
template <typename Io>
void Sampling(Io& io, SamplingParams& p) {
  io.F(p.temperature);
  io.I(p.top_k);
  io.F(p.top_p);
  io.F(p.min_p);
  io.F(p.repetition_penalty);
  io.F(p.presence_penalty);
  io.N(p.seed);
}

template <typename Io>
void Fields(Io& io, ResumeToken& t) {
  io.T(t.model_digest);
  io.T(t.numerics_class);
  io.N(t.prompt_tokens);
  io.B(t.prompt);
  Sampling(io, t.sampling);
  io.N(t.max_tokens);
  io.N(t.stop_strings);
  io.B(t.stop_token_ids);
  io.N(t.logprobs);
  io.N(t.output_tokens);
  io.B(t.output);
  io.N(t.text);
  io.N(t.queued_us);
  io.N(t.prefill_us);
  io.N(t.decode_us);
}

struct Out {
  Writer& writer;
  void F(float& v) { writer.Float(v); }
  void I(int32_t& v) { writer.Number(static_cast<uint32_t>(v)); }
  template <typename T>
  void N(T& v) {
    writer.Number(v);
  }
  void T(std::string& v) { writer.Text(v); }
  void B(Digest& v) { writer.Bytes(v); }
};

struct In {
  Reader& reader;
  void F(float& v) { v = reader.Float(); }
  void I(int32_t& v) { v = static_cast<int32_t>(reader.Number<uint32_t>()); }
  template <typename T>
  void N(T& v) {
    v = reader.Number<T>();
  }
  void T(std::string& v) { v = reader.Text(); }
  void B(Digest& v) { v = reader.Bytes(); }
};

uint64_t Micros(absl::Duration duration) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, absl::ToInt64Microseconds(duration)));
}

}  // namespace

void IdDigest::Add(int32_t id) {
  std::array<uint8_t, sizeof(id)> bytes;
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(static_cast<uint32_t>(id) >> (8 * i));
  running_.Add(bytes.data(), bytes.size());
}

void IdDigest::Add(std::span<const int32_t> ids) {
  for (int32_t id : ids) Add(id);
}

// FNV-1a: byte by byte, which is what makes the cuts irrelevant.
uint64_t TextDigest(uint64_t so_far, absl::string_view text) {
  for (const char c : text)
    so_far = (so_far ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return so_far;
}

uint64_t StopDigest(std::span<const std::string> stops) {
  std::string all;
  for (const std::string& stop : stops)
    absl::StrAppend(&all, stop.size(), ":", stop);
  return XXH3_64bits(all.data(), all.size());
}

std::string SerializeResumeToken(const ResumeToken& token) {
  TL_CHECK(token.model_digest.size() <= kModelDigestMax &&
           token.numerics_class.size() <= kNumericsClassMax);
  Writer writer;
  writer.bytes().append(kMagic, sizeof(kMagic));
  writer.Number(kVersion);
  writer.Number(static_cast<uint8_t>(
      (token.prompt_logprobs ? kPromptLogprobs : 0) |
      (token.include_special_tokens ? kIncludeSpecial : 0)));
  ResumeToken copy = token;
  Out out{writer};
  Fields(out, copy);
  writer.Bytes(DigestOf(writer.bytes().data(), writer.bytes().size()));
  TL_CHECK_LE(writer.bytes().size(), kResumeTokenBytesMax);
  return std::move(writer.bytes());
}

absl::StatusOr<ResumeToken> ParseResumeToken(absl::string_view bytes) {
  if (bytes.size() > kResumeTokenBytesMax) {
    return Bad(absl::StrCat("has ", bytes.size(), " bytes; at most ",
                            kResumeTokenBytesMax, " are possible"));
  }
  if (bytes.size() < sizeof(kMagic) + 1 ||
      bytes.substr(0, sizeof(kMagic)) !=
          absl::string_view(kMagic, sizeof(kMagic)))
    return Bad("is none: it does not begin as one does");
  const uint8_t version = static_cast<uint8_t>(bytes[sizeof(kMagic)]);
  if (version != kVersion) {
    return Bad(absl::StrCat("has version ", int{version},
                            "; this trunk knows version ", int{kVersion}));
  }
  if (bytes.size() < sizeof(kMagic) + 2 + sizeof(Digest))
    return Bad(absl::StrCat("is cut short: ", bytes.size(), " bytes"));
  const absl::string_view body = bytes.substr(0, bytes.size() - sizeof(Digest));
  const Digest digest = DigestOf(body.data(), body.size());
  if (std::memcmp(digest.data(), bytes.data() + body.size(), digest.size()) !=
      0)
    return Bad("is damaged: its digest does not fit its bytes");

  Reader reader(body.substr(sizeof(kMagic) + 1));
  ResumeToken token;
  const uint8_t flags = reader.Number<uint8_t>();
  In in{reader};
  Fields(in, token);
  if (!reader.whole()) return Bad("has fields of another length");
  if ((flags & ~(kPromptLogprobs | kIncludeSpecial)) != 0)
    return Bad(absl::StrCat("has unknown flags ", int{flags}));
  token.prompt_logprobs = (flags & kPromptLogprobs) != 0;
  token.include_special_tokens = (flags & kIncludeSpecial) != 0;
  if (token.model_digest.size() > kModelDigestMax ||
      token.numerics_class.size() > kNumericsClassMax)
    return Bad("names a model or numerics class that is too long");
  for (const uint64_t us : {token.queued_us, token.prefill_us, token.decode_us})
    if (us > kSpentMicrosMax) return Bad("claims more than a hundred years");
  const absl::Status sampling = ValidateSampling(token.sampling);
  if (!sampling.ok()) return Bad(absl::StrCat("has ", sampling.message()));
  return token;
}

ResumeTracker::ResumeTracker(const GenerationRequest& request,
                             std::string model_digest,
                             std::string numerics_class) {
  token_.model_digest = std::move(model_digest);
  token_.numerics_class = std::move(numerics_class);
  token_.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  IdDigest prompt, stop_token_ids;
  prompt.Add(request.prompt);
  token_.prompt = prompt.digest();
  token_.sampling = request.sampling;
  token_.max_tokens = static_cast<uint32_t>(request.max_tokens);
  token_.stop_strings = StopDigest(request.stop);
  stop_token_ids.Add(request.stop_token_ids);
  token_.stop_token_ids = stop_token_ids.digest();
  token_.logprobs = static_cast<uint8_t>(request.logprobs);
  token_.prompt_logprobs = request.prompt_logprobs;
  token_.include_special_tokens = request.include_special_tokens;
  output_.Add(request.delivered);
  token_.output_tokens = static_cast<uint32_t>(request.delivered.size());
  token_.output = output_.digest();
  token_.text = request.delivered_text;
  token_.queued_us = Micros(request.spent.queued);
  token_.prefill_us = Micros(request.spent.prefill);
  token_.decode_us = Micros(request.spent.decode);
}

void ResumeTracker::Delivered(const Output& output) {
  output_.Add(output.token_ids);
  token_.output = output_.digest();
  token_.output_tokens += static_cast<uint32_t>(output.token_ids.size());
  token_.text = TextDigest(token_.text, output.text);
  token_.queued_us = Micros(output.usage.queued);
  token_.prefill_us = Micros(output.usage.prefill);
  token_.decode_us = Micros(output.usage.decode);
}

}  // namespace trunkline::trunk
