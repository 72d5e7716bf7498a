#include "trunk_worker/trunk_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/compute_threads.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/cluster_numerics.h"
#include "kernels/kernel_context.h"
#include "transport/transport_factory.h"
#include "trunk_worker/local_experts.h"
#include "trunk_worker/trunk_registration.h"

namespace trunkline::trunk {
namespace {

constexpr int64_t kDefaultSequenceTokens = 8192;
constexpr int kRequestBytesMax = 16 << 20;
// For replies that are made when the engine ends its last requests.
constexpr auto kReplyGrace = std::chrono::seconds(1);

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

std::string MakeName(const std::string& listen) {
  const std::string port = listen.substr(listen.rfind(':') + 1);
  return absl::StrCat("trunk-", HostName(), "-",
                      port == "0" ? absl::StrCat(getpid()) : port);
}

std::string HostOf(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

int64_t PhysicalMemory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
}

SequencePool::Options StateOptions(const TrunkOptions& options,
                                   const model::Checkpoint& checkpoint) {
  SequencePool::Options state;
  state.sequences_max = options.sequences_max;
  state.tokens_max = options.sequence_tokens_max;
  if (state.tokens_max == 0) {
    state.tokens_max = kDefaultSequenceTokens;
    if (checkpoint.config().max_positions > 0)
      state.tokens_max =
          std::min(state.tokens_max, checkpoint.config().max_positions);
  }
  state.memory_bytes = options.state_memory_bytes > 0
                           ? options.state_memory_bytes
                           : PhysicalMemory() / 2;
  return state;
}

absl::StatusOr<kernels::Numerics> NumericsFor(
    const TrunkOptions& options, const model::Checkpoint& checkpoint) {
  std::string asked = options.numerics;
  if (asked == "auto" && !options.coordinator.empty()) {
    TL_ASSIGN_OR_RETURN(asked, control::ClusterNumerics(options.coordinator));
  }
  auto numerics = kernels::ChooseNumerics(asked, checkpoint.projection_dtype());
  if (!numerics.ok()) return Annotate(numerics.status(), "--numerics");
  return numerics;
}

absl::StatusOr<std::shared_ptr<const model::Tokenizer>> LoadTokenizer(
    const std::string& directory) {
  const std::string file = directory + "/tokenizer.json";
  if (!std::filesystem::exists(file)) {
    TL_LOG_WARN("{} is missing: prompts are token ids, answers have no text",
                file);
    return nullptr;
  }
  return model::Tokenizer::Load(file);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrunkServer>> TrunkServer::Start(
    const TrunkOptions& options) {
  TL_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<TrunkServer> server(new TrunkServer());
  server->name_ =
      options.name.empty() ? MakeName(options.listen) : options.name;
  TL_RETURN_IF_ERROR(
      InitLogging("trunk-worker", server->name_, options.log_level));
  TL_RETURN_IF_ERROR(kernels::SelectTarget(options.simd));
  TL_RETURN_IF_ERROR(server->StartMetrics(options));
  TL_RETURN_IF_ERROR(server->LoadModel(options));
  TL_RETURN_IF_ERROR(server->StartEngine(options));
  TL_RETURN_IF_ERROR(server->Listen(options));
  TL_LOG_INFO("serving {} at {}, {} threads, {}, numerics {}",
              server->model_.name, server->address_, server->pool_->threads(),
              kernels::ActiveTarget(),
              kernels::NumericsName(server->model_.numerics));
  if (!options.coordinator.empty()) server->Join(options);
  return server;
}

absl::Status TrunkServer::LoadModel(const TrunkOptions& options) {
  TL_ASSIGN_OR_RETURN(std::shared_ptr<const model::Checkpoint> checkpoint,
                      model::Checkpoint::Open(options.model_dir));
  if (!options.coordinator.empty() && checkpoint->config().MoeLayers().empty())
    return absl::FailedPreconditionError(absl::StrCat(
        checkpoint->directory(), ": the model has no routed experts (layers ",
        checkpoint->config().LayerPattern(),
        "), so there is nothing to place: leave --coordinator out"));
  TL_ASSIGN_OR_RETURN(std::shared_ptr<const model::Tokenizer> tokenizer,
                      LoadTokenizer(options.model_dir));
  TL_ASSIGN_OR_RETURN(const kernels::Numerics numerics,
                      NumericsFor(options, *checkpoint));
  pool_ = std::make_unique<ThreadPool>(
      ComputeThreads(options.threads, options.cores));
  const kernels::KernelContext context{pool_.get(), numerics};
  TL_ASSIGN_OR_RETURN(weights_, TrunkWeights::Load(*checkpoint, context,
                                                   options.on_load_progress));
  const int64_t tokens_max = StateOptions(options, *checkpoint).tokens_max;
  model_ =
      ServedModel::For(std::move(checkpoint), std::move(tokenizer), tokens_max);
  model_.admission = options.admission;
  model_.numerics = numerics;
  model_.self_check_digest = kernels::SelfCheckDigest(context);
  return absl::OkStatus();
}

absl::Status TrunkServer::StartMetrics(const TrunkOptions& options) {
  registry_ = std::make_shared<prometheus::Registry>();
  metrics_ = std::make_unique<TrunkMetrics>(*registry_);
  if (options.metrics_listen.empty()) return absl::OkStatus();
  auto endpoint = MetricsEndpoint::Start(options.metrics_listen, registry_);
  if (!endpoint.ok()) return Annotate(endpoint.status(), "--metrics-listen");
  endpoint_ = *std::move(endpoint);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ExpertExchange>> TrunkServer::MakeExperts(
    const TrunkOptions& options) {
  const kernels::KernelContext context{pool_.get(), model_.numerics};
  if (options.coordinator.empty())
    return LocalExperts::Load(*model_.checkpoint, context);
  TL_ASSIGN_OR_RETURN(
      std::unique_ptr<transport::Transport> transport,
      transport::MakeTransport(options.transport, options.transport_options));
  ExpertLink::Options link;
  link.limits.worker_deadline = options.worker_deadline;
  link.limits.step_deadline = options.exchange_deadline;
  auto experts =
      std::make_unique<ExpertLink>(std::move(transport), context, link);
  link_ = experts.get();
  return experts;
}

absl::Status TrunkServer::StartEngine(const TrunkOptions& options) {
  TL_ASSIGN_OR_RETURN(std::unique_ptr<ExpertExchange> experts,
                      MakeExperts(options));
  Engine::Options engine;
  engine.state = StateOptions(options, *model_.checkpoint);
  engine.batch = {options.rows_per_step, options.prefill_chunk};
  engine.admission = options.admission;
  engine.waiting_max = static_cast<size_t>(options.queue_max);
  engine.unready_patience = options.unready_patience;
  engine.on_step = [this](const StepStats& step) { metrics_->OnStep(step); };
  engine.on_hold = [this](size_t requests) { metrics_->OnHold(requests); };
  engine.on_recompute = [this](uint64_t sequences) {
    metrics_->OnRecompute(sequences);
  };
  metrics_->AddLayers(*registry_, model_.checkpoint->config().MoeLayers());
  recorder_ = std::make_unique<RouteRecorder>(
      [this] { return metrics_->LayerTotals(); });
  engine.observers.push_back(recorder_.get());
  // After the recorder, so that a recording has the layer that is refused.
  if (options.validate_routes &&
      !model_.checkpoint->config().MoeLayers().empty()) {
    TL_ASSIGN_OR_RETURN(RecordingHeader layers,
                        MakeRecordingHeader(*model_.checkpoint, weights_,
                                            options.admission, {}));
    validator_ = std::make_unique<LiveRouteValidator>(
        std::move(layers), [this] { metrics_->OnLayerValidated(); });
    engine.observers.push_back(validator_.get());
  }
  engine.on_readiness = [this](const absl::Status& status) {
    OnReadiness(status);
  };
  TL_ASSIGN_OR_RETURN(
      engine_,
      Engine::Create(model_.checkpoint.get(), &weights_, model_.tokenizer.get(),
                     std::move(experts), pool_.get(), std::move(engine)));
  metrics_->OnState(engine_->Stats());
  return absl::OkStatus();
}

absl::Status TrunkServer::Listen(const TrunkOptions& options) {
  GenerationService::Options service;
  service.request_time_max = options.request_time_max;
  service.stream_buffer_bytes = options.stream_buffer_bytes;
  service.active_version = [this] { return PlacementVersion(active_version_); };
  service_ = std::make_unique<GenerationService>(&model_, engine_.get(),
                                                 metrics_.get(), service);
  record_service_ = std::make_unique<RouteRecorderService>(
      model_.checkpoint.get(), &weights_, options.admission, recorder_.get(),
      model_.name, name_);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(service_.get());
  builder.RegisterService(record_service_.get());
  builder.SetMaxReceiveMessageSize(kRequestBytesMax);
  // Two servers on one port would share its connections without a word.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A client whose machine is gone must not hold its slot for ever.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "--listen ", options.listen, ": the address can not be listened on"));
  }
  address_ = absl::StrCat(HostOf(options.listen), ":", port);
  std::lock_guard lock(mutex_);
  health_ = server_->GetHealthCheckService();
  ShowHealth();
  return absl::OkStatus();
}

void TrunkServer::Join(const TrunkOptions& options) {
  control::Registration registration =
      TrunkRegistration(*model_.checkpoint, model_.admission, model_.numerics,
                        model_.self_check_digest);
  registration.name = name_;
  registration.api_address =
      options.advertise_host.empty()
          ? address_
          : absl::StrCat(options.advertise_host, ":",
                         address_.substr(address_.rfind(':') + 1));
  registration.metrics_address = metrics_address();
  registration.failure_domain = HostName();

  control::CoordinatorClient::Callbacks callbacks;
  callbacks.on_registered = [this](const control::Identity& identity) {
    identity_ = identity;
  };
  callbacks.on_view = [this](const control::ClusterView& view) {
    OnView(view);
  };
  callbacks.make_report = [this] {
    control::Report report;
    report.at_rest = engine_->AtRest();
    LookAtCanary(PlacementVersion(active_version_));
    report.canary = canary_->result();
    report.oldest_in_flight = link_->oldest_in_flight();
    report.loads = link_->TakeLoads();
    return report;
  };
  callbacks.on_refused = [on_refused =
                              options.on_refused](const absl::Status& status) {
    TL_LOG_ERROR("the coordinator refuses this worker: {}", status.ToString());
    if (on_refused) on_refused(status);
  };
  StartCanary(options);
  client_ = control::CoordinatorClient::Start(
      options.coordinator, std::move(registration), std::move(callbacks));
  reporter_ = client_.get();
}

void TrunkServer::StartCanary(const TrunkOptions& options) {
  Canary::Options canary;
  canary.numerics = NumericsOf(model_);
  canary.vocab_size = model_.checkpoint->config().vocab_size;
  canary.prompt_tokens = std::min(
      options.canary_tokens, model_.sequence_tokens_max - canary.output_tokens);
  canary.on_result = [this] {
    metrics_->OnCanary(true);
    // Before Join has returned, the first heartbeat says it all anyway.
    if (control::CoordinatorClient* reporter = reporter_) reporter->ReportNow();
  };
  canary.on_failure = [this](const absl::Status& why) {
    metrics_->OnCanary(false);
    TL_LOG_DEBUG("the canary prompt gave no answer: {}", why.ToString());
  };
  canary.now = [this] { return engine_->Now(); };
  canary.start = [this](GenerationRequest request, OutputSink sink) {
    return engine_->Start(std::move(request), std::move(sink)).status();
  };
  canary_ = std::make_unique<Canary>(std::move(canary));
}

void TrunkServer::OnView(const control::ClusterView& view) {
  link_->UpdateView(view, identity_);
  active_version_ = view.active.value;
  metrics_->OnPlacement(view.active);
  FollowDrain(view);
  LookAtCanary(view.active);
}

// A trunk that is being drained would refuse it.
void TrunkServer::LookAtCanary(PlacementVersion active) {
  {
    std::lock_guard lock(mutex_);
    if (leaving_ || draining_) return;
  }
  canary_->Look(active);
}

// An operator drains this trunk: running requests finish in their own time, new
// ones go elsewhere.
void TrunkServer::FollowDrain(const control::ClusterView& view) {
  const control::WorkerView* self = view.FindWorker(identity_.worker);
  if (self == nullptr) return;
  std::lock_guard lock(mutex_);
  if (leaving_ || draining_ == self->draining) return;
  draining_ = self->draining;
  TL_LOG_INFO(draining_ ? "draining: new requests are refused"
                        : "back in service");
  engine_->SetDraining(draining_, absl::UnavailableError(absl::StrCat(
                                      "trunk '", name_, "' is being drained")));
  ShowHealth();
}

void TrunkServer::OnReadiness(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  ready_ = status.ok();
  if (ready_) {
    TL_LOG_INFO("ready");
  } else {
    TL_LOG_WARN("not ready: {}", status.ToString());
  }
  ShowHealth();
}

void TrunkServer::ShowHealth() {
  if (health_ == nullptr || leaving_) return;
  const bool serving = ready_ && !draining_;
  health_->SetServingStatus(serving);
  health_->SetServingStatus("trunkline.v1.Generation", serving);
}

void TrunkServer::Shutdown(absl::Duration patience) {
  if (std::exchange(shut_down_, true)) return;
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
    if (health_ != nullptr) {
      health_->SetServingStatus(false);
      health_->SetServingStatus("trunkline.v1.Generation", false);
    }
  }
  if (engine_ != nullptr) engine_->Shutdown(patience);
  if (recorder_ != nullptr) recorder_->StopForGood();
  if (server_ != nullptr)
    server_->Shutdown(std::chrono::system_clock::now() + kReplyGrace);
  if (client_ != nullptr) client_->Stop();
}

TrunkServer::~TrunkServer() { Shutdown(absl::ZeroDuration()); }

}  // namespace trunkline::trunk
