#include "transport/transport_factory.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "transport/inprocess/inprocess_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace trunkline::transport {

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(
    const std::string& kind, const Options& options) {
  TL_RETURN_IF_ERROR(ValidateOptions(options));
  if (kind == "inprocess") return MakeInprocessTransport(options);
  if (kind == "ucx") return MakeUcxTransport(options);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown transport \"", kind, "\"; there are \"ucx\" and \"inprocess\""));
}

}  // namespace trunkline::transport
