#include "expert_worker/expert_server.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/compute_threads.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "control/cluster_numerics.h"
#include "kernels/kernel_context.h"
#include "model/checkpoint.h"
#include "transport/transport_factory.h"

namespace trunkline::expert {

namespace {

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

std::string AfterLast(const std::string& text, char mark) {
  return text.substr(text.rfind(mark) + 1);
}

// "ucx://0.0.0.0:40123" and host 10.0.0.7 -> "ucx://10.0.0.7:40123".
std::string AdvertisedAddress(const std::string& listening,
                              const std::string& host) {
  if (host.empty()) return listening;
  const size_t scheme = listening.find("://");
  return absl::StrCat(listening.substr(0, scheme), "://", host, ":",
                      AfterLast(listening, ':'));
}

struct ModelShape {
  std::vector<MoeLayer> layers;
  std::vector<placement::MoeLayerShape> placed;
};

absl::StatusOr<ModelShape> ShapeOf(const model::Checkpoint& checkpoint) {
  ModelShape shape;
  const model::ModelConfig& config = checkpoint.config();
  for (const model::LayerSpec& spec : config.layers) {
    if (spec.kind != model::LayerKind::kMoe) continue;
    const int64_t width = spec.moe.expert_input(config.hidden_size);
    shape.layers.push_back({spec.index, static_cast<uint32_t>(spec.moe.experts),
                            static_cast<uint32_t>(width)});
    int64_t bytes = 0;
    for (const model::TensorInfo& tensor : checkpoint.tensors()) {
      if (tensor.role == model::TensorRole::kRoutedExpert &&
          tensor.layer == spec.index)
        bytes += tensor.bytes;
    }
    shape.placed.push_back(
        {spec.index, spec.moe.experts, bytes / spec.moe.experts});
  }
  if (shape.layers.empty())
    return absl::FailedPreconditionError(absl::StrCat(
        checkpoint.directory(), ": the model has no routed experts (layers ",
        config.LayerPattern(), "), so it needs no expert worker"));
  return shape;
}

absl::StatusOr<kernels::Numerics> NumericsFor(
    const ExpertOptions& options, const model::Checkpoint& checkpoint) {
  std::string asked = options.numerics;
  if (asked == "auto") {
    TL_ASSIGN_OR_RETURN(asked, control::ClusterNumerics(options.coordinator));
  }
  auto numerics = kernels::ChooseNumerics(asked, checkpoint.projection_dtype());
  if (!numerics.ok()) return Annotate(numerics.status(), "--numerics");
  return numerics;
}

std::shared_ptr<ExpertDigests> ManifestDigests(
    const model::Checkpoint& checkpoint) {
  auto digests = std::make_shared<ExpertDigests>();
  for (const model::ExpertChecksum& expert : checkpoint.expert_checksums()) {
    digests->Set({expert.layer, expert.expert}, expert.digest);
  }
  return digests;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertServer>> ExpertServer::Start(
    const ExpertOptions& options) {
  TL_RETURN_IF_ERROR(options.Validate());
  TL_RETURN_IF_ERROR(
      InitLogging("expert-worker", options.name, options.log_level));
  TL_RETURN_IF_ERROR(kernels::SelectTarget(options.simd));
  TL_ASSIGN_OR_RETURN(const std::shared_ptr<const model::Checkpoint> checkpoint,
                      model::Checkpoint::Open(options.model_dir));
  TL_ASSIGN_OR_RETURN(ModelShape shape, ShapeOf(*checkpoint));
  TL_ASSIGN_OR_RETURN(const kernels::Numerics numerics,
                      NumericsFor(options, *checkpoint));

  std::unique_ptr<ExpertServer> server(new ExpertServer());
  server->handover_timeout_ = options.handover_timeout;
  TL_RETURN_IF_ERROR(server->StartMetrics(options));
  TL_ASSIGN_OR_RETURN(
      std::unique_ptr<transport::Transport> transport,
      transport::MakeTransport(options.transport, options.transport_options));
  TL_ASSIGN_OR_RETURN(const std::string listening,
                      transport->Listen(options.listen));
  server->data_address_ = AdvertisedAddress(listening, options.advertise_host);
  server->name_ = options.name;
  if (server->name_.empty()) {
    server->name_ =
        absl::StrCat("expert-", HostName(), "-", AfterLast(listening, ':'));
    TL_RETURN_IF_ERROR(
        InitLogging("expert-worker", server->name_, options.log_level));
  }

  control::Registration registration;
  {
    ThreadPool pool(ThreadPool::Options{});
    registration.self_check_digest =
        kernels::SelfCheckDigest(kernels::KernelContext{&pool, numerics});
  }
  registration.numerics_class = kernels::NumericsName(numerics);
  registration.model_digest = checkpoint->digest();
  registration.moe_layers = std::move(shape.placed);

  ThreadPool::Options threads = ComputeThreads(options.threads, options.cores);
  threads.wait_for_turn = options.shared_cores;
  ExpertStore::Options store;
  store.memory_limit_bytes = options.memory_limit_bytes;
  store.threads = threads;
  store.numerics = numerics;
  store.digests = ManifestDigests(*checkpoint);
  store.peers = std::make_shared<PeerLoader>(
      [kind = options.transport,
       transport_options = options.transport_options] {
        return transport::MakeTransport(kind, transport_options);
      },
      &server->peers_, PeerLoader::Options());
  server->store_ = std::make_unique<ExpertStore>(checkpoint, store);
  ExpertEngine::Options engine;
  engine.layers = std::move(shape.layers);
  engine.activation = checkpoint->activation_dtype() == DType::kBF16
                          ? kernels::Activation::kBf16
                          : kernels::Activation::kF32;
  engine.answer = ChooseAnswerForm(options.answer, engine.activation);
  engine.limits = options.limits;
  engine.threads = threads;
  engine.digest_of = [digests = store.digests](ExpertKey key) {
    return digests->Find(key);
  };
  server->engine_ = std::make_unique<ExpertEngine>(engine, std::move(transport),
                                                   server->metrics_.get());
  server->follower_ = std::make_unique<PlacementFollower>(
      server->store_.get(), server->engine_.get(),
      [raw = server.get()] { raw->ReportNow(); });
  TL_LOG_INFO("serving experts of {} at {}, {} threads, {}, numerics {}",
              checkpoint->directory(), server->data_address_, threads.threads,
              kernels::ActiveTarget(), kernels::NumericsName(numerics));
  server->Join(options, std::move(registration));
  return server;
}

absl::Status ExpertServer::StartMetrics(const ExpertOptions& options) {
  registry_ = std::make_shared<prometheus::Registry>();
  metrics_ = std::make_unique<ExpertMetrics>(*registry_);
  metrics_->memory_limit_bytes.Set(
      static_cast<double>(options.memory_limit_bytes));
  if (options.metrics_listen.empty()) return absl::OkStatus();
  TL_ASSIGN_OR_RETURN(
      endpoint_, MetricsEndpoint::Start(options.metrics_listen, registry_));
  metrics_address_ = endpoint_->address();
  return absl::OkStatus();
}

void ExpertServer::Join(const ExpertOptions& options,
                        control::Registration registration) {
  registration.name = name_;
  registration.role = control::Role::kExpert;
  registration.data_address = data_address_;
  registration.metrics_address = metrics_address_;
  registration.failure_domain =
      options.failure_domain.empty() ? HostName() : options.failure_domain;
  registration.memory_bytes = static_cast<uint64_t>(options.memory_limit_bytes);

  control::CoordinatorClient::Callbacks callbacks;
  callbacks.on_registered = [this](const control::Identity& identity) {
    worker_ = identity.worker;
    follower_->OnRegistered(identity);
  };
  callbacks.on_view = [this](const control::ClusterView& view) {
    // First: the versions that the follower stages may have to come from peers.
    peers_.Update(view, worker_);
    follower_->OnView(view);
  };
  callbacks.make_report = [this] { return MakeReport(); };
  callbacks.on_refused = [on_refused =
                              options.on_refused](const absl::Status& status) {
    if (on_refused) on_refused(status);
  };
  client_ = control::CoordinatorClient::Start(
      options.coordinator, std::move(registration), std::move(callbacks));
  reporter_ = client_.get();
}

control::Report ExpertServer::MakeReport() {
  control::Report report;
  report.versions = follower_->Reports();
  report.wants_drain = wants_drain_;
  report.costs = engine_->costs();
  metrics_->read_cost_seconds.Set(report.costs.read_seconds);
  metrics_->row_cost_seconds.Set(report.costs.row_seconds);
  metrics_->experts_bytes.Set(static_cast<double>(store_->held_bytes()));
  const ExpertStore::Sources sources = store_->sources();
  metrics_->experts_loaded_disk.Set(static_cast<double>(sources.disk_experts));
  metrics_->experts_loaded_peer.Set(static_cast<double>(sources.peers.experts));
  metrics_->expert_bytes_loaded_disk.Set(
      static_cast<double>(sources.disk_bytes));
  metrics_->expert_bytes_loaded_peer.Set(
      static_cast<double>(sources.peers.bytes));
  metrics_->peer_pieces_refused.Set(
      static_cast<double>(sources.peers.pieces_refused));
  metrics_->peers_left.Set(static_cast<double>(sources.peers.peers_left));
  return report;
}

void ExpertServer::ReportNow() {
  // Before Join has returned, the first heartbeat says it all anyway.
  if (control::CoordinatorClient* reporter = reporter_) reporter->ReportNow();
}

absl::Status ExpertServer::Shutdown(absl::Duration patience) {
  if (std::exchange(shut_down_, true)) return absl::OkStatus();
  const Clock& clock = Clock::Monotonic();
  const absl::Time deadline = clock.Now() + patience;
  const auto left = [&] {
    return std::max(absl::ZeroDuration(), deadline - clock.Now());
  };
  const absl::Duration handover = std::min(handover_timeout_, left());
  if (handover > absl::ZeroDuration()) {
    wants_drain_ = true;
    client_->ReportNow();
    const PlacementFollower::Handover end = follower_->WaitDrained(handover);
    if (end == PlacementFollower::Handover::kTimedOut)
      TL_LOG_WARN(
          "leaving although no other worker took over all experts in {}",
          absl::FormatDuration(handover));
    if (end == PlacementFollower::Handover::kNobodyLeft)
      TL_LOG_INFO("no other expert worker stays: nothing to hand over to");
  }
  client_->Stop();
  engine_->Drain();
  if (!engine_->WaitIdle(left()))
    return absl::DeadlineExceededError(absl::StrCat(
        "expert worker ", name_, ": frames were left unanswered after ",
        absl::FormatDuration(patience)));
  return absl::OkStatus();
}

ExpertServer::~ExpertServer() {
  // A server that failed to start has no client.
  if (client_ != nullptr) Shutdown(absl::ZeroDuration()).IgnoreError();
}

}  // namespace trunkline::expert
