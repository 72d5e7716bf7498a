#pragma once

// Metrics of one process: components build their handles from an injected
// prometheus registry, the edge exposes it. Names start with "trunkline_".

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace prometheus {
class Exposer;
}

namespace trunkline {

using MetricLabels = std::map<std::string, std::string>;

// Handles live as long as the registry. The same name and labels give the same
// handle; a name must always come with the same kind and help.
prometheus::Counter& AddCounter(prometheus::Registry& registry,
                                const std::string& name,
                                const std::string& help,
                                const MetricLabels& labels = {});
prometheus::Gauge& AddGauge(prometheus::Registry& registry,
                            const std::string& name, const std::string& help,
                            const MetricLabels& labels = {});
// buckets: upper bounds, ascending.
prometheus::Histogram& AddHistogram(prometheus::Registry& registry,
                                    const std::string& name,
                                    const std::string& help,
                                    const std::vector<double>& buckets,
                                    const MetricLabels& labels = {});

// What GET /metrics answers.
std::string MetricsText(const prometheus::Registry& registry);

// Serves GET /metrics over HTTP for as long as it lives.
class MetricsEndpoint {
 public:
  // address: "host:port"; port 0 picks a free one. INVALID_ARGUMENT for an
  // address that is none, UNAVAILABLE when it can not be bound.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& address,
      std::shared_ptr<prometheus::Registry> registry);
  ~MetricsEndpoint();

  const std::string& address() const { return address_; }  // as bound

 private:
  MetricsEndpoint() = default;
  std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string address_;
};

}  // namespace trunkline
