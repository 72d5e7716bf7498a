#include "model/census.h"

#include <algorithm>

#include "common/check.h"

namespace trunkline::model {
namespace {

struct CountedTensor {
  const TensorSpec* spec = nullptr;
  DType dtype = DType::kF32;
};

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

PartCensus CountTensor(const ModelConfig& config, const TensorSpec& spec,
                       DType dtype, bool tied) {
  PartCensus count;
  const int64_t element_bytes = DTypeBytes(dtype);
  count.parameters = Elements(spec.shape);
  count.bytes = count.parameters * element_bytes;
  // The prediction head's experts are counted by its own layer table.
  const auto& layers =
      spec.role == TensorRole::kMtp ? config.mtp_layers : config.layers;
  if (spec.part == TensorPart::kEmbedding) {
    // One row is looked up; a tied head reads the whole table as well.
    count.active_parameters = tied ? count.parameters : config.hidden_size;
    count.decode_bytes = count.active_parameters * element_bytes;
  } else if (spec.part == TensorPart::kRoutedExperts) {
    // Each of a token's top_k experts is another one, so a layer reads top_k
    // experts' worth; spread over the layer's experts by their index.
    const MoeShape& moe = layers[spec.layer.value].moe;
    if (spec.expert.value < moe.top_k) {
      count.active_parameters = count.parameters;
      count.decode_bytes = count.bytes;
    }
  } else {
    count.active_parameters = count.parameters;
    count.decode_bytes = count.bytes;
  }
  return count;
}

void CountState(const ModelConfig& config, DType activation, Census* census) {
  const int64_t row_bytes = DTypeBytes(activation);
  for (const LayerSpec& layer : config.layers) {
    ++census->layers[static_cast<size_t>(layer.kind)];
    if (layer.kind == LayerKind::kMamba) {
      const MambaShape& mamba = layer.mamba;
      census->conv_state_bytes +=
          (mamba.conv_kernel - 1) * mamba.conv_dim() * row_bytes;
      census->scan_state_bytes += mamba.inner() * mamba.state_size * 4;  // fp32
    } else if (layer.kind == LayerKind::kAttention) {
      const AttentionShape& attention = layer.attention;
      census->kv_bytes_per_token +=
          2 * attention.kv_heads * attention.head_dim * row_bytes;
    }
  }
}

void Raise(int64_t* peak, int64_t value) { *peak = std::max(*peak, value); }

PeakWidths CountPeaks(const ModelConfig& config) {
  PeakWidths peak;
  peak.hidden = config.hidden_size;
  peak.vocab = config.vocab_size;
  for (const LayerSpec& layer : config.layers) {
    switch (layer.kind) {
      case LayerKind::kMamba:
        Raise(&peak.mamba_in_proj, layer.mamba.in_proj_rows());
        Raise(&peak.mamba_conv, layer.mamba.conv_dim());
        Raise(&peak.mamba_inner, layer.mamba.inner());
        break;
      case LayerKind::kAttention:
        Raise(&peak.attention_query,
              layer.attention.heads * layer.attention.head_dim);
        Raise(&peak.attention_key,
              layer.attention.kv_heads * layer.attention.head_dim);
        break;
      case LayerKind::kMlp:
        Raise(&peak.dense, layer.mlp.width);
        break;
      case LayerKind::kMoe:
        Raise(&peak.experts, layer.moe.experts);
        Raise(&peak.top_k, layer.moe.top_k);
        Raise(&peak.expert, layer.moe.width);
        Raise(&peak.expert_input, layer.moe.expert_input(config.hidden_size));
        Raise(&peak.shared_expert, layer.moe.shared_width);
        Raise(&peak.latent, layer.moe.latent);
        break;
    }
  }
  return peak;
}

Census Take(const ModelConfig& config,
            const std::vector<CountedTensor>& tensors, bool tied,
            DType activation) {
  Census census;
  for (const CountedTensor& tensor : tensors) {
    PartCensus count = CountTensor(config, *tensor.spec, tensor.dtype, tied);
    if (tensor.spec->role == TensorRole::kMtp) {
      // The trunk does not run it: it costs bytes on disk and nothing a token.
      count.active_parameters = 0;
      count.decode_bytes = 0;
      census.mtp += count;
    } else {
      census.parts[static_cast<size_t>(tensor.spec->part)] += count;
    }
  }
  CountState(config, activation, &census);
  census.peak = CountPeaks(config);
  return census;
}

}  // namespace

PartCensus& PartCensus::operator+=(const PartCensus& other) {
  parameters += other.parameters;
  active_parameters += other.active_parameters;
  bytes += other.bytes;
  decode_bytes += other.decode_bytes;
  return *this;
}

PartCensus Census::model() const {
  PartCensus sum;
  for (const PartCensus& part : parts) sum += part;
  return sum;
}

PartCensus Census::total() const {
  PartCensus sum = model();
  sum += mtp;
  return sum;
}

Census TakeCensus(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  const bool tied = config.tie_word_embeddings;
  const std::vector<TensorSpec> specs = ExpectedTensors(config);
  std::vector<CountedTensor> counted;
  size_t next = 0;
  for (const TensorSpec& spec : specs) {
    if (tied && spec.part == TensorPart::kHead) continue;
    const TensorInfo& tensor = checkpoint.tensors()[next++];
    TL_CHECK(tensor.name == spec.name) << tensor.name << ", " << spec.name;
    counted.push_back({&spec, tensor.dtype});
  }
  return Take(config, counted, tied, checkpoint.activation_dtype());
}

Census TakeCensus(const ModelConfig& config, DType dtype) {
  const bool tied = config.tie_word_embeddings;
  const std::vector<TensorSpec> specs = ExpectedTensors(config);
  std::vector<CountedTensor> counted;
  for (const TensorSpec& spec : specs) {
    if (tied && spec.part == TensorPart::kHead) continue;
    counted.push_back({&spec, dtype});
  }
  return Take(config, counted, tied,
              dtype == DType::kBF16 ? DType::kBF16 : DType::kF32);
}

}  // namespace trunkline::model
