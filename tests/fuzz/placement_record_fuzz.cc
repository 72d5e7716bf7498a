// What lies in etcd is input: it is refused, or means the same when it is
// written again.

#include <cstdint>
#include <string>

#include "common/check.h"
#include "coordinator/placement_record_proto.h"
#include "coordinator/store_address.h"

namespace {

template <typename Decode, typename Encode>
void Check(const std::string& bytes, Decode decode, Encode encode) {
  const auto record = decode(bytes);
  if (!record.ok()) {
    TL_CHECK(!record.status().message().empty());
    return;
  }
  const std::string once = encode(*record);
  const auto again = decode(once);
  TL_CHECK(again.ok()) << again.status();
  TL_CHECK(encode(*again) == once);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trunkline::coordinator;
  if (size == 0 || size > (1u << 18)) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 6) {
    case 0:
      Check(bytes, DecodeCluster, EncodeCluster);
      break;
    case 1:
      Check(bytes, DecodeWorker, EncodeWorker);
      break;
    case 2:
      Check(bytes, DecodePlacement, EncodePlacement);
      break;
    case 3:
      Check(bytes, DecodeMap, EncodeMap);
      break;
    case 4:
      Check(bytes, DecodeHistory, EncodeHistory);
      break;
    default:
      // No text at all means memory, which has no text.
      if (bytes.empty()) return 0;
      Check(bytes, ParseStoreAddress, FormatStoreAddress);
  }
  return 0;
}
