#include "common/metric_registry.h"

#include <exception>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "prometheus/exposer.h"
#include "prometheus/text_serializer.h"

namespace trunkline {
namespace {

void CheckName(const std::string& name) {
  TL_CHECK(absl::StartsWith(name, "trunkline_")) << "metric " << name;
}

}  // namespace

prometheus::Counter& AddCounter(prometheus::Registry& registry,
                                const std::string& name,
                                const std::string& help,
                                const MetricLabels& labels) {
  CheckName(name);
  return prometheus::BuildCounter()
      .Name(name)
      .Help(help)
      .Register(registry)
      .Add(labels);
}

prometheus::Gauge& AddGauge(prometheus::Registry& registry,
                            const std::string& name, const std::string& help,
                            const MetricLabels& labels) {
  CheckName(name);
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(
      labels);
}

prometheus::Histogram& AddHistogram(prometheus::Registry& registry,
                                    const std::string& name,
                                    const std::string& help,
                                    const std::vector<double>& buckets,
                                    const MetricLabels& labels) {
  CheckName(name);
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Register(registry)
      .Add(labels, buckets);
}

std::string MetricsText(const prometheus::Registry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address,
    std::shared_ptr<prometheus::Registry> registry) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address '", address, "' is not host:port"));
  }
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());
  endpoint->registry_ = std::move(registry);
  // The library reports a port in use by throwing.
  try {
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(address);
    endpoint->exposer_->RegisterCollectable(endpoint->registry_);
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("metrics address ", address, ": ", error.what()));
  }
  const std::vector<int> ports = endpoint->exposer_->GetListeningPorts();
  if (ports.empty()) {
    return absl::UnavailableError(
        absl::StrCat("metrics address ", address, ": no port was bound"));
  }
  endpoint->address_ =
      absl::StrCat(address.substr(0, colon), ":", ports.front());
  return endpoint;
}

MetricsEndpoint::~MetricsEndpoint() = default;

}  // namespace trunkline
