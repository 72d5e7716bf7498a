// Any bytes as a route record file, and any bytes as its unpacked messages: an
// error, or records that can be routed again and judged without harm.

#include <zstd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>

#include "common/check.h"
#include "routing/replay.h"
#include "routing/route_validator.h"
#include "trunk_worker/route_record_file.h"

using namespace trunkline;
using namespace trunkline::trunk;

namespace {

// Longer messages are slow and show nothing more.
constexpr size_t kMessageBytesMax = 1 << 20;

void ReadAll(const std::string& bytes) {
  auto reader = RouteRecordReader::Read(
      std::make_unique<std::istringstream>(bytes), "fuzz", kMessageBytesMax);
  if (!reader.ok()) return;
  RecordedRoutes routes;
  for (int records = 0; records < 16; ++records) {
    const absl::StatusOr<bool> more = (*reader)->Next(&routes);
    if (!more.ok() || !*more) return;
    // What was read can be written, and is then the same.
    const auto again = RoutesFromProto(ToProto(routes), (*reader)->header());
    TL_CHECK(again.ok()) << again.status();
    TL_CHECK(!routing::FirstDifference(routes.record, again->record));
    if (routes.record.values.size() > 4096) continue;
    (void)routing::ProveEqual(routes.record);
    (void)routing::ValidateLayer(routes.record);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  ReadAll(bytes);
  // A fuzzer does not learn to write zstd: the messages are packed for it.
  std::string packed(ZSTD_compressBound(size), '\0');
  const size_t length =
      ZSTD_compress(packed.data(), packed.size(), data, size, 1);
  TL_CHECK(ZSTD_isError(length) == 0);
  packed.resize(length);
  ReadAll(packed);
  return 0;
}
