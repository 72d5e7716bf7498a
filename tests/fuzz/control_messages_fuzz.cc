// Whatever a peer of the control plane sends is refused or means the same when
// it is sent on.

#include <cstdint>

#include "common/check.h"
#include "control/cluster_proto.h"

namespace {

template <typename Message>
void Check(const uint8_t* data, size_t size) {
  using namespace trunkline::control;
  Message message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return;
  const auto plain = FromProto(message);
  if (!plain.ok()) {
    TL_CHECK(!plain.status().message().empty());
    return;
  }
  const auto again = FromProto(ToProto(*plain));
  TL_CHECK(again.ok()) << again.status();
  TL_CHECK(ToProto(*again).SerializeAsString() ==
           ToProto(*plain).SerializeAsString());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace wire = trunkline::control::wire;
  if (size == 0 || size > (1u << 20)) return 0;
  switch (data[0] % 3) {
    case 0:
      Check<wire::RegisterRequest>(data + 1, size - 1);
      break;
    case 1:
      Check<wire::HeartbeatRequest>(data + 1, size - 1);
      break;
    default:
      Check<wire::ClusterView>(data + 1, size - 1);
  }
  return 0;
}
