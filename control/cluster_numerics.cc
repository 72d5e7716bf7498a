#include "control/cluster_numerics.h"

#include "common/status_macros.h"
#include "control/coordinator_client.h"

namespace trunkline::control {

absl::StatusOr<std::string> ClusterNumerics(const std::string& addresses,
                                            absl::Duration patience) {
  const auto view = FetchCluster(addresses, patience);
  if (!view.ok()) {
    return Annotate(view.status(),
                    "--numerics auto asks the coordinator for the class");
  }
  return view->numerics_class.empty() ? "portable" : view->numerics_class;
}

}  // namespace trunkline::control
