#include "cli/bench_cluster.h"

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "transport/transport_factory.h"
#include "trunk_worker/trunk_registration.h"

namespace trunkline::cli {
namespace {

constexpr absl::Duration kStartPatience = absl::Seconds(60);
constexpr absl::Duration kLook = absl::Milliseconds(20);

std::string TailOf(const std::string& file) {
  std::ifstream in(file);
  std::string line, last;
  while (std::getline(in, line)) last = line;
  return last;
}

}  // namespace

BenchCluster::BenchCluster(const UpFlags& flags) : flags_(flags) {}

BenchCluster::~BenchCluster() {
  if (client_ != nullptr) client_->Stop();
  client_ = nullptr;
  link_ = nullptr;
  // Nothing of theirs is worth an orderly stop.
  for (Member& member : members_) member.process->Signal(SIGKILL);
  members_.clear();
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

absl::StatusOr<std::unique_ptr<BenchCluster>> BenchCluster::Start(
    const UpFlags& flags, int machine_cpus) {
  std::unique_ptr<BenchCluster> cluster(new BenchCluster(flags));
  std::string directory =
      (std::filesystem::temp_directory_path() / "trunkline_bench_XXXXXX")
          .string();
  if (mkdtemp(directory.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat(directory, ": can not create a directory"));
  }
  cluster->directory_ = directory;
  TL_RETURN_IF_ERROR(cluster->Spawn(PlanCoordinators(flags).front()));
  TL_ASSIGN_OR_RETURN(cluster->coordinator_address_,
                      cluster->AwaitAddress("coordinator"));
  for (const UpProcess& process :
       PlanWorkers(flags, cluster->coordinator_address_, machine_cpus)) {
    if (process.role == UpRole::kExpert)
      TL_RETURN_IF_ERROR(cluster->Spawn(process));
  }
  return cluster;
}

absl::Status BenchCluster::Spawn(const UpProcess& process) {
  ChildProcess::Spec spec;
  spec.program = OwnProgramPath();
  spec.arguments = process.arguments;
  spec.arguments.insert(
      spec.arguments.end(),
      {"--address-file", absl::StrCat(directory_, "/", process.name)});
  spec.log_file = LogOf(process.name);
  TL_ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> child,
                      ChildProcess::Spawn(spec));
  // The address file says it all.
  child->CloseAnnounce();
  members_.push_back({process.name, std::move(child)});
  return absl::OkStatus();
}

std::string BenchCluster::LogOf(const std::string& name) const {
  return absl::StrCat(directory_, "/", name, ".log");
}

absl::Status BenchCluster::CheckAlive() {
  for (const Member& member : members_) {
    if (!member.process->Reap()) continue;
    return absl::UnavailableError(absl::StrCat(member.name, " ended with ",
                                               member.process->Ending(), ": ",
                                               TailOf(LogOf(member.name))));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> BenchCluster::AwaitAddress(
    const std::string& name) {
  const std::string file = absl::StrCat(directory_, "/", name);
  const absl::Time end = absl::Now() + kStartPatience;
  while (absl::Now() < end) {
    std::string address;
    if (std::getline(std::ifstream(file), address)) return address;
    TL_RETURN_IF_ERROR(CheckAlive());
    absl::SleepFor(kLook);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      name, " does not listen after ", absl::FormatDuration(kStartPatience)));
}

absl::StatusOr<trunk::ExpertLink*> BenchCluster::Join(
    const model::Checkpoint& checkpoint, const kernels::KernelContext& context,
    absl::Duration patience) {
  TL_ASSIGN_OR_RETURN(std::unique_ptr<transport::Transport> transport,
                      transport::MakeTransport(flags_.transport, {}));
  link_ = std::make_unique<trunk::ExpertLink>(std::move(transport), context,
                                              trunk::ExpertLink::Options{});
  control::Registration registration = trunk::TrunkRegistration(
      checkpoint, routing::AdmissionPolicy{}, context.numerics,
      kernels::SelfCheckDigest(context));
  registration.name = "bench";
  // Nobody calls it: the steps are this process's own.
  registration.api_address = "127.0.0.1:1";
  control::CoordinatorClient::Callbacks callbacks;
  callbacks.on_registered = [this](const control::Identity& identity) {
    identity_ = identity;
  };
  callbacks.on_view = [this](const control::ClusterView& view) {
    link_->UpdateView(view, identity_);
  };
  callbacks.make_report = [this] {
    control::Report report;
    report.oldest_in_flight = link_->oldest_in_flight();
    report.loads = link_->TakeLoads();
    return report;
  };
  callbacks.on_refused = [](const absl::Status&) {};
  client_ = control::CoordinatorClient::Start(
      coordinator_address_, std::move(registration), std::move(callbacks));
  const absl::Time end = absl::Now() + patience;
  absl::Status ready = link_->Ready();
  while (!ready.ok() && absl::Now() < end) {
    TL_RETURN_IF_ERROR(CheckAlive());
    link_->Poll(kLook);
    ready = link_->Ready();
  }
  TL_RETURN_IF_ERROR(ready);
  return link_.get();
}

}  // namespace trunkline::cli
