#include "cli/score_matrix.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::cli {
namespace {

using nlohmann::json;

// Far beyond any layer; the arrays below can not overflow.
constexpr size_t kNumbersMax = size_t{1} << 28;

absl::Status Bad(const std::string& file, absl::string_view where,
                 absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", where, ": ", why));
}

absl::StatusOr<double> Finite(const json& value, const std::string& file,
                              const std::string& where) {
  if (!value.is_number()) return Bad(file, where, "is not a number");
  const auto number = value.get<double>();
  if (!std::isfinite(number)) return Bad(file, where, "is not finite");
  return number;
}

template <typename T>
absl::Status ReadVector(const json& values, const std::string& file,
                        const std::string& where, size_t count,
                        std::vector<T>* out) {
  if (!values.is_array() || values.size() != count)
    return Bad(file, where, absl::StrCat("is not an array of ", count));
  for (size_t i = 0; i < count; ++i) {
    TL_ASSIGN_OR_RETURN(
        const double number,
        Finite(values[i], file, absl::StrCat(where, "[", i, "]")));
    out->push_back(static_cast<T>(number));
  }
  return absl::OkStatus();
}

absl::Status ReadMatrix(const json& rows, const std::string& file,
                        const std::string& where, size_t* row_count,
                        size_t* columns, std::vector<float>* out) {
  if (!rows.is_array() || rows.empty() || !rows[0].is_array() ||
      rows[0].empty())
    return Bad(file, where, "is not an array of rows");
  *row_count = rows.size();
  *columns = rows[0].size();
  if (*columns > kNumbersMax / *row_count)
    return Bad(file, where, "has too many numbers");
  for (size_t r = 0; r < rows.size(); ++r)
    TL_RETURN_IF_ERROR(ReadVector(
        rows[r], file, absl::StrCat(where, "[", r, "]"), *columns, out));
  return absl::OkStatus();
}

// The one object that has the numbers: the document, or its only member.
const json* FindBody(const json& document, std::string* name) {
  const auto has = [](const json& value) {
    return value.is_object() &&
           (value.contains("scores") || value.contains("logits") ||
            value.contains("probabilities"));
  };
  if (has(document)) return &document;
  if (!document.is_object()) return nullptr;
  for (const auto& item : document.items()) {
    if (!has(item.value())) continue;
    *name = item.key();
    return &item.value();
  }
  return nullptr;
}

absl::Status ReadExtras(const json& body, const std::string& file,
                        std::optional<double> draw, size_t rows, size_t experts,
                        routing::LayerRecord* r) {
  if (body.contains("bias"))
    TL_RETURN_IF_ERROR(
        ReadVector(body["bias"], file, "bias", experts, &r->bias));
  if (body.contains("noise")) {
    size_t noise_rows = 0, noise_columns = 0;
    TL_RETURN_IF_ERROR(ReadMatrix(body["noise"], file, "noise", &noise_rows,
                                  &noise_columns, &r->noise));
    if (noise_rows != rows || noise_columns != experts)
      return Bad(file, "noise", "has another shape than the scores");
  }
  if (draw.has_value()) {
    r->draws.assign(rows, *draw);
  } else if (body.contains("draws")) {
    TL_RETURN_IF_ERROR(
        ReadVector(body["draws"], file, "draws", rows, &r->draws));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ScoreMatrix> ParseScoreMatrix(absl::string_view text,
                                             const std::string& file,
                                             std::optional<double> draw) {
  const json document = json::parse(text.begin(), text.end(), nullptr,
                                    /*allow_exceptions=*/false);
  if (document.is_discarded()) return Bad(file, "document", "is not JSON");
  ScoreMatrix matrix;
  const json* body = FindBody(document, &matrix.name);
  if (body == nullptr)
    return Bad(file, "document",
               "has no \"scores\", \"logits\" or \"probabilities\"");
  const std::string field = body->contains("logits")   ? "logits"
                            : body->contains("scores") ? "scores"
                                                       : "probabilities";
  routing::LayerRecord& r = matrix.record;
  size_t rows = 0, experts = 0;
  TL_RETURN_IF_ERROR(
      ReadMatrix((*body)[field], file, field, &rows, &experts, &r.values));
  const auto top_k = body->find("top_k");
  if (top_k == body->end() || !top_k->is_number_unsigned())
    return Bad(file, "top_k", "is missing or no whole number");
  r.transformed = field != "logits";
  matrix.any_transform = field == "scores";
  r.policy = routing::SoftmaxTopKPolicy(static_cast<int64_t>(experts),
                                        top_k->get<int64_t>(), true);
  r.step = StepId(0);
  r.layer = LayerIndex(0);
  TL_RETURN_IF_ERROR(
      Annotate(routing::FillRecord(static_cast<int64_t>(rows), &r), file));
  TL_RETURN_IF_ERROR(ReadExtras(*body, file, draw, rows, experts, &r));
  return matrix;
}

}  // namespace trunkline::cli
