// Any bytes as a resume token: refused with a reason, or a value that is
// written to the same bytes. A second look puts the right digest behind the
// bytes, so that what lies behind that check is reached.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/check.h"
#include "trunk_worker/resume_token.h"

using namespace trunkline;
using namespace trunkline::trunk;

namespace {

void Look(const std::string& bytes) {
  const absl::StatusOr<ResumeToken> token = ParseResumeToken(bytes);
  if (!token.ok()) {
    TL_CHECK(absl::IsInvalidArgument(token.status())) << token.status();
    TL_CHECK(!token.status().message().empty());
    return;
  }
  TL_CHECK(ValidateSampling(token->sampling).ok());
  TL_CHECK(SerializeResumeToken(*token) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  Look(bytes);
  const Digest digest = DigestOf(data, size);
  bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  Look(bytes);
  return 0;
}
