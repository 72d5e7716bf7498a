// Any bytes as config.json and generation_config.json: an error, or a layer
// table whose tensors and counts are in bounds and which survives being
// written and read.

#include <cstddef>
#include <cstdint>

#include "common/check.h"
#include "model/census.h"
#include "model/config_json.h"
#include "model/model_config.h"
#include "model/semantic_text.h"
#include "model/weight_partition.h"

using trunkline::DType;
using namespace trunkline::model;

namespace {

// Expanding a table with very many experts is slow and shows nothing more.
bool IsSmall(const ModelConfig& config) {
  int64_t experts = 0;
  for (const auto* layers : {&config.layers, &config.mtp_layers}) {
    for (const LayerSpec& layer : *layers) {
      if (layer.kind == LayerKind::kMoe) experts += layer.moe.experts;
    }
  }
  return experts <= 2000;
}

void CheckTable(const ModelConfig& config) {
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    int64_t elements = 1;
    for (const int64_t size : spec.shape) {
      TL_CHECK_GT(size, 0) << spec.name;
      TL_CHECK(!__builtin_mul_overflow(elements, size, &elements)) << spec.name;
    }
  }
  const Census census = TakeCensus(config, DType::kF32);
  TL_CHECK_GE(census.total().bytes, census.model().decode_bytes);
  TL_CHECK_GE(census.state_bytes(), 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  (void)ParseGenerationConfig(text, "fuzz");
  const auto config = ParseModelConfig(text, "fuzz");
  if (!config.ok() || !IsSmall(*config)) return 0;
  CheckTable(*config);
  const auto written =
      ConfigJson(*config, DType::kBF16, LayerTableSpelling::kBlocks);
  if (!written.ok()) return 0;  // tables that no spelling can say
  const auto read = ParseModelConfig(*written, "written");
  TL_CHECK(read.ok()) << read.status();
  TL_CHECK(SemanticConfigText(*read) == SemanticConfigText(*config));
  return 0;
}
