#pragma once

// TL_RETURN_IF_ERROR(expr): returns from the enclosing function when expr is
// not OK. TL_ASSIGN_OR_RETURN(decl, expr): declares or assigns from a StatusOr,
// or returns its status.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TL_CONCAT_INNER_(a, b) a##b
#define TL_CONCAT_(a, b) TL_CONCAT_INNER_(a, b)

#define TL_RETURN_IF_ERROR(expr)                              \
  do {                                                        \
    if (::absl::Status tl_status_ = (expr); !tl_status_.ok()) \
      return tl_status_;                                      \
  } while (false)

#define TL_ASSIGN_OR_RETURN(decl, expr) \
  TL_ASSIGN_OR_RETURN_IMPL_(TL_CONCAT_(tl_status_or_, __LINE__), decl, expr)

#define TL_ASSIGN_OR_RETURN_IMPL_(name, decl, expr) \
  auto name = (expr);                               \
  if (!name.ok()) return std::move(name).status();  \
  decl = std::move(name).value()

namespace trunkline {

// The same status with "context: " in front of its message. OK stays OK.
absl::Status Annotate(const absl::Status& status, const std::string& context);

}  // namespace trunkline
