#include "model/token_id_fields.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trunkline::model {

int32_t ReadTokenId(JsonFields* fields, const std::string& name,
                    int32_t fallback, int64_t limit) {
  // A small vocabulary may lack the family's usual id: then there is none.
  if (!fields->Has(name) && fallback >= limit) return -1;
  return static_cast<int32_t>(fields->Int(name, fallback, 0, limit - 1));
}

std::vector<int32_t> ReadTokenIds(JsonFields* fields, const std::string& name,
                                  std::vector<int32_t> fallback,
                                  int64_t limit) {
  const nlohmann::json* value = fields->Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_array()) return {ReadTokenId(fields, name, 0, limit)};
  std::vector<int32_t> ids;
  for (const nlohmann::json& entry : *value) {
    const bool fits = entry.is_number_unsigned() &&
                      entry.get<uint64_t>() < static_cast<uint64_t>(limit);
    if (!fits) {
      fields->FailField(
          absl::StrCat(name, "[", ids.size(), "]"),
          absl::StrCat("is ", JsonForError(entry), ", an integer in 0..",
                       limit - 1, " is expected"));
      return ids;
    }
    ids.push_back(static_cast<int32_t>(entry.get<uint64_t>()));
  }
  return ids;
}

}  // namespace trunkline::model
