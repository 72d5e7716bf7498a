#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/json_text.h"
#include "model/model_config.h"
#include "model/token_id_fields.h"

namespace trunkline::model {
namespace {

float ReadInRange(JsonFields* fields, const char* name, double fallback,
                  double max) {
  const double value = fields->Number(name, fallback);
  if (fields->ok() && !(value >= 0 && value <= max)) {
    fields->FailField(name, absl::StrCat("is ", value, ", a number in 0..", max,
                                         " is expected"));
  }
  return static_cast<float>(value);
}

}  // namespace

absl::StatusOr<GenerationDefaults> ParseGenerationConfig(
    absl::string_view json_text, const std::string& file) {
  TL_ASSIGN_OR_RETURN(const nlohmann::json document,
                      ParseJson(json_text, file, JsonLimits{}));
  JsonFields fields(document, "", file);
  TL_RETURN_IF_ERROR(fields.status());
  GenerationDefaults defaults;
  defaults.eos_token_ids =
      ReadTokenIds(&fields, "eos_token_id", {},
                   int64_t{std::numeric_limits<int32_t>::max()});
  defaults.do_sample = fields.Bool("do_sample", false);
  defaults.temperature = ReadInRange(&fields, "temperature", 1.0, 1e6);
  defaults.top_p = ReadInRange(&fields, "top_p", 1.0, 1.0);
  defaults.top_k = static_cast<int32_t>(
      fields.Int("top_k", 0, 0, std::numeric_limits<int32_t>::max()));
  // Every request may set these; a file that changes the text of all requests
  // by a default that is not applied here would be misread in silence.
  struct Neutral {
    const char* name;
    double value;
  };
  for (const Neutral& neutral :
       {Neutral{"min_p", 0}, Neutral{"repetition_penalty", 1},
        Neutral{"presence_penalty", 0}, Neutral{"frequency_penalty", 0},
        Neutral{"typical_p", 1}, Neutral{"epsilon_cutoff", 0},
        Neutral{"eta_cutoff", 0}, Neutral{"no_repeat_ngram_size", 0},
        Neutral{"encoder_repetition_penalty", 1}, Neutral{"num_beams", 1},
        Neutral{"penalty_alpha", 0}}) {
    const double value = fields.Number(neutral.name, neutral.value);
    if (!fields.ok() || value == neutral.value) continue;
    fields.Fail(absl::UnimplementedError(absl::StrCat(
        file, ": ", neutral.name, " is ", value, ": only its neutral value ",
        neutral.value, " is supported as a default of the checkpoint")));
  }
  TL_RETURN_IF_ERROR(fields.status());
  return defaults;
}

}  // namespace trunkline::model
