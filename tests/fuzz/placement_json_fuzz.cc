// A placement document from an operator's disk: any bytes give a document that
// writes and reads the same again, or an error.

#include <cstdint>
#include <string>

#include "common/check.h"
#include "placement/placement_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trunkline::placement;
  const auto document = PlacementFromJson(
      absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!document.ok()) {
    TL_CHECK(!document.status().message().empty());
    return 0;
  }
  const std::string text = PlacementToJson(*document);
  const auto again = PlacementFromJson(text);
  // Names that are no UTF-8 are the one thing that is written differently.
  if (again.ok()) TL_CHECK(PlacementToJson(*again) == text);
  return 0;
}
