#pragma once

// Which names may stand in config.json. A name that is in no list stops the
// load: an unknown field may change the arithmetic, and silence would then
// mean wrong text.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/json_text.h"

namespace trunkline::model {

enum class ConfigLevel { kText, kWrapper, kBlock };

// INVALID_ARGUMENT naming the first unknown field that is not null.
absl::Status CheckKnownNames(const JsonFields& fields, ConfigLevel level);

// The names that may live per block (blockwise_members).
bool IsBlockName(absl::string_view name);

}  // namespace trunkline::model
