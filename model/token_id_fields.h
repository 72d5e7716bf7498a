#pragma once

// Special token ids as config.json and generation_config.json write them.

#include <cstdint>
#include <string>
#include <vector>

#include "model/json_text.h"

namespace trunkline::model {

// `fallback` when absent; ids lie in 0..limit-1.
int32_t ReadTokenId(JsonFields* fields, const std::string& name,
                    int32_t fallback, int64_t limit);

// One id or a list of them.
std::vector<int32_t> ReadTokenIds(JsonFields* fields, const std::string& name,
                                  std::vector<int32_t> fallback, int64_t limit);

}  // namespace trunkline::model
