#include "coordinator/coordinator_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/metric_registry.h"
#include "common/status_macros.h"
#include "control/control_channel.h"
#include "coordinator/admin_service.h"
#include "coordinator/control_service.h"
#include "coordinator/coordinator_host.h"
#include "coordinator/coordinator_metrics.h"
#include "coordinator/durable_coordinator.h"
#include "coordinator/etcd_election.h"
#include "coordinator/store_sqlite.h"

namespace trunkline::coordinator {
namespace {

constexpr char kControlHealth[] = "trunkline.control.v1.Coordinator";

uint64_t RandomClusterId() {
  std::random_device device;
  const uint64_t id = (uint64_t{device()} << 32) | device();
  return id == 0 ? 1 : id;  // 0 reads as "none" in messages
}

// For the synchronous service: few operators, and never more threads than this
// whatever they do.
void LimitThreads(grpc::ServerBuilder* builder) {
  using Option = grpc::ServerBuilder::SyncServerOption;
  builder->SetSyncServerOption(Option::NUM_CQS, 1);
  builder->SetSyncServerOption(Option::MIN_POLLERS, 1);
  builder->SetSyncServerOption(Option::MAX_POLLERS, 2);
  grpc::ResourceQuota quota("coordinator");
  quota.SetMaxThreads(16);
  builder->SetResourceQuota(quota);
}

void EnableGrpcPlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

class Server final : public CoordinatorServer {
 public:
  explicit Server(const CoordinatorOptions& options)
      : options_(options),
        registry_(std::make_shared<prometheus::Registry>()),
        metrics_(*registry_) {}
  ~Server() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start() {
    if (!options_.metrics.empty()) {
      TL_ASSIGN_OR_RETURN(endpoint_,
                          MetricsEndpoint::Start(options_.metrics, registry_));
      metrics_address_ = endpoint_->address();
    }
    TL_ASSIGN_OR_RETURN(const StoreAddress where, options_.Store());
    host_ = std::make_unique<CoordinatorHost>(
        RebalanceOptions{.max_moved_bytes = options_.rebalance_max_moved_bytes,
                         .min_gain = options_.rebalance_min_gain},
        &metrics_);
    const bool alone = where.kind != StoreAddress::Kind::kEtcd;
    if (alone) {
      TL_ASSIGN_OR_RETURN(
          std::unique_ptr<PlacementStore> store,
          OpenSqliteStore(where.path.empty() ? ":memory:" : where.path,
                          RandomClusterId()));
      TL_RETURN_IF_ERROR(
          BeginTerm(std::move(store), [] { return absl::InfiniteFuture(); }));
    }
    admin_ = std::make_unique<AdminService>(host_.get(), &metrics_);
    service_ = std::make_unique<ControlService>(host_.get(), &metrics_,
                                                options_.watchers_max);
    TL_RETURN_IF_ERROR(Listen(/*leads=*/alone));
    host_->Start(
        {.on_view =
             [this](CoordinatorHost::SharedView view, bool ready) {
               SetHealth(kClusterHealth, ready);
               service_->Publish(std::move(view));
             },
         .on_role = [this](const absl::Status& leads) { OnRole(leads); },
         .on_deposed =
             [this] {
               if (election_ != nullptr) election_->Resign();
             }});
    TL_LOG_INFO("coordinator listens on {}, state in {}", address_,
                FormatStoreAddress(where));
    if (!alone) StartElection(where);
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }
  const std::string& metrics_address() const override {
    return metrics_address_;
  }

  void Shutdown(absl::Duration patience) override {
    const std::lock_guard<std::mutex> lock(shutdown_mutex_);
    // Gives the lead up, so that another one has it while the calls here end.
    if (election_ != nullptr) election_->Stop();
    if (host_ != nullptr) host_->Stop();
    if (server_ != nullptr) {
      server_->GetHealthCheckService()->Shutdown();
      service_->EndWatches(
          absl::UnavailableError("the coordinator is stopping"));
      server_->Shutdown(absl::ToChronoTime(absl::Now() + patience));
      server_->Wait();
      server_.reset();
    }
    service_.reset();
    admin_.reset();
    election_.reset();
    host_.reset();
    endpoint_.reset();
  }

 private:
  absl::Status BeginTerm(std::unique_ptr<PlacementStore> store,
                         std::function<absl::Time()> leads_until) {
    if (options_.wrap_store) store = options_.wrap_store(std::move(store));
    TL_ASSIGN_OR_RETURN(
        std::unique_ptr<DurableCoordinator> durable,
        DurableCoordinator::Open(
            options_.Core(), std::move(store),
            {.now = Clock::Monotonic().Now(), .wall = absl::Now()}));
    host_->Lead(std::move(durable), std::move(leads_until));
    return absl::OkStatus();
  }

  // Listening: the leader key holds the address that is bound.
  void StartElection(const StoreAddress& where) {
    EtcdElection::Options election;
    election.endpoints = where.endpoints;
    election.prefix = where.prefix;
    election.address = AdvertisedAddress();
    election.lease = options_.store_lease;
    election.new_cluster_id = RandomClusterId();
    election_ = std::make_unique<EtcdElection>(
        election,
        EtcdElection::Callbacks{
            .on_elected =
                [this](std::unique_ptr<PlacementStore> store) {
                  return BeginTerm(std::move(store),
                                   [this] { return election_->leads_until(); });
                },
            .on_following =
                [this](const std::string& leader, const std::string& why) {
                  host_->Follow(leader, why);
                }});
    election_->Start();
  }

  std::string AdvertisedAddress() const {
    if (options_.advertise_host.empty()) return address_;
    return absl::StrCat(options_.advertise_host,
                        address_.substr(address_.rfind(':')));
  }

  void OnRole(const absl::Status& leads) {
    SetHealth(kControlHealth, leads.ok());
    if (leads.ok()) {
      TL_LOG_INFO("coordinator {} leads", address_);
      service_->ReopenWatches();
      return;
    }
    TL_LOG_INFO("coordinator {} follows: {}", address_,
                std::string(leads.message()));
    SetHealth(kClusterHealth, false);
    service_->EndWatches(leads);
  }

  void SetHealth(const char* service, bool serving) {
    server_->GetHealthCheckService()->SetServingStatus(service, serving);
  }

  absl::Status Listen(bool leads) {
    EnableGrpcPlugins();
    grpc::ServerBuilder builder;
    control::ConfigureControlServer(&builder);
    int port = 0;
    builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(service_.get());
    builder.RegisterService(admin_.get());
    LimitThreads(&builder);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      server_.reset();
      return absl::UnavailableError(absl::StrCat("can not listen on ",
                                                 options_.listen,
                                                 ": the address is in use or "
                                                 "not ours"));
    }
    address_ = absl::StrCat(
        options_.listen.substr(0, options_.listen.rfind(':')), ":", port);
    SetHealth(kControlHealth, leads);
    SetHealth(kClusterHealth, false);
    return absl::OkStatus();
  }

  const CoordinatorOptions options_;
  const std::shared_ptr<prometheus::Registry> registry_;
  CoordinatorMetrics metrics_;
  std::string address_, metrics_address_;
  std::mutex shutdown_mutex_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
  std::unique_ptr<CoordinatorHost> host_;
  std::unique_ptr<EtcdElection> election_;  // with etcd
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const CoordinatorOptions& options) {
  TL_RETURN_IF_ERROR(options.Validate());
  if (!options.log_level.empty()) {
    TL_RETURN_IF_ERROR(
        InitLogging("coordinator", options.listen, options.log_level));
  }
  auto server = std::make_unique<Server>(options);
  TL_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace trunkline::coordinator
