#include "transport/ucx/ucx_context.h"

#include <cstdlib>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/log.h"

namespace trunkline::transport::ucx {

std::string Describe(ucs_status_t status) {
  return absl::StrCat(ucs_status_string(status), " (", status, ")");
}

const std::vector<Setting>& DefaultSettings() {
  // docs/gotchas.md, "UCX settings", has the measurements behind these. For a
  // setting of one transport the key is the variable's name without that
  // transport's prefix; with the prefix UCX takes it and then ignores it.
  static const std::vector<Setting>* const settings = new std::vector<Setting>{
      // Shared memory between processes of one host counts as a transport that
      // can report failure only with these; without them UCX uses tcp. The key
      // is one for both.
      {"POSIX_ERROR_HANDLING", "MM_ERROR_HANDLING", "y", {"posix", "sysv"}},
      // Messages of 16 to 256 KiB are the usual step. TX above RX would keep
      // the
      // worker from being created.
      {"TCP_TX_SEG_SIZE", "TX_SEG_SIZE", "256k", {"tcp"}},
      {"TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "256k", {"tcp"}},
      {"RNDV_THRESH", "RNDV_THRESH", "256k", {}},
      // tcp's own put: an endpoint that is closed by force while the peer still
      // acknowledges one ends the process by an assertion inside UCX.
      {"TCP_PUT_ENABLE", "PUT_ENABLE", "n", {"tcp"}},
  };
  return *settings;
}

namespace {

// UCX's names for groups of transports.
std::vector<std::string> Members(const std::string& name) {
  if (name == "mm") return {"posix", "sysv", "xpmem"};
  if (name == "sm" || name == "shm")
    return {"posix", "sysv", "xpmem", "knem", "cma"};
  return {name};
}

bool IsSharedMemory(const std::string& name) {
  return absl::c_linear_search(Members("sm"), Members(name).front());
}

}  // namespace

bool AnyInUse(const char* tls, const std::vector<std::string>& transports) {
  if (tls == nullptr || transports.empty()) return true;
  const bool excludes = tls[0] == '^';
  std::set<std::string> named;
  for (const std::string& name : std::vector<std::string>(
           absl::StrSplit(excludes ? tls + 1 : tls, ','))) {
    if (!excludes && name == "all") return true;
    for (std::string& member : Members(name)) named.insert(std::move(member));
  }
  return absl::c_any_of(transports, [&](const std::string& transport) {
    return named.contains(transport) != excludes;
  });
}

bool SharedMemoryInUse(const char* tls) { return AnyInUse(tls, Members("mm")); }

std::string TransportsFor(Reach reach, const char* tls) {
  const std::string given = tls == nullptr ? "all" : tls;
  if (reach == Reach::kHost) return tls == nullptr ? "^posix" : given;
  if (given[0] == '^') return absl::StrCat(given, ",sm");
  std::vector<std::string> left;
  for (const std::string& name :
       std::vector<std::string>(absl::StrSplit(given, ','))) {
    if (name == "all") return "^sm";
    if (!IsSharedMemory(name)) left.push_back(name);
  }
  return left.empty() ? given : absl::StrJoin(left, ",");
}

namespace {

void ApplyDefaults(ucp_config_t* config, const std::string& transports) {
  const char* const tls = transports.c_str();
  for (const Setting& setting : DefaultSettings()) {
    if (std::getenv(absl::StrCat("UCX_", setting.variable).c_str()) !=
            nullptr ||
        !AnyInUse(tls, setting.transports)) {
      continue;
    }
    const ucs_status_t status =
        ucp_config_modify(config, setting.key, setting.value);
    if (status != UCS_OK) {
      // A build of UCX without this transport: nothing to set.
      TL_LOG_DEBUG("ucx: setting {}={}: {}", setting.key, setting.value,
                   Describe(status));
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(Reach reach) {
  auto out = std::unique_ptr<UcxContext>(new UcxContext);
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) {
    return absl::UnavailableError(absl::StrCat(
        "ucx: the UCX_ environment can't be read: ", Describe(status)));
  }
  const std::string transports = TransportsFor(reach, std::getenv("UCX_TLS"));
  if (transports != "all") {
    status = ucp_config_modify(config, "TLS", transports.c_str());
    if (status != UCS_OK) {
      ucp_config_release(config);
      return absl::UnavailableError(absl::StrCat(
          "ucx: transports \"", transports, "\": ", Describe(status)));
    }
  }
  ApplyDefaults(config, transports);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "trunkline";
  status = ucp_init(&params, config, &out->context_);
  ucp_config_release(config);
  if (status != UCS_OK) {
    return absl::UnavailableError(
        absl::StrCat("ucx: no usable transport: ", Describe(status)));
  }
  return out;
}

UcxContext::~UcxContext() {
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(
    const UcxContext& context) {
  auto out = std::unique_ptr<UcxWorker>(new UcxWorker);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status =
      ucp_worker_create(context.get(), &worker, &out->worker_);
  if (status != UCS_OK) {
    return absl::UnavailableError(
        absl::StrCat("ucx: no worker: ", Describe(status)));
  }
  status = ucp_worker_get_efd(out->worker_, &out->efd_);
  if (status != UCS_OK) {
    return absl::UnavailableError(absl::StrCat(
        "ucx: the chosen transports can't wake a sleeper: ", Describe(status)));
  }
  return out;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
}

}  // namespace trunkline::transport::ucx
