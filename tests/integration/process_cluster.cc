#include "tests/integration/process_cluster.h"

#include <grpcpp/create_channel.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "tests/integration/connected_channel.h"
#include "tests/integration/eventually.h"

namespace trunkline::testing {
namespace {
constexpr auto kStartLimit = std::chrono::seconds(60);

std::string CoordinatorName(int i) {
  return i == 0 ? "coordinator" : absl::StrCat("coordinator-", i);
}
}  // namespace

absl::StatusOr<std::unique_ptr<ProcessCluster>> ProcessCluster::Start(
    const Options& options) {
  auto cluster = std::unique_ptr<ProcessCluster>(new ProcessCluster(options));
  const absl::Status status = cluster->StartAll();
  if (!status.ok())
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), "\n", cluster->Logs()));
  return cluster;
}

absl::Status ProcessCluster::StartAll() {
  for (size_t i = 0; i < options_.expert_models.size(); ++i)
    expert_models_[static_cast<int>(i)] = options_.expert_models[i];
  const size_t coordinators = static_cast<size_t>(options_.coordinators);
  coordinators_.resize(coordinators);
  coordinator_addresses_.resize(coordinators);
  for (int i = 0; i < options_.coordinators; ++i) {
    SpawnCoordinator(i, "127.0.0.1:0");
  }
  for (size_t i = 0; i < coordinators; ++i) {
    TL_ASSIGN_OR_RETURN(
        coordinator_addresses_[i],
        AwaitAddress(CoordinatorName(static_cast<int>(i)), *coordinators_[i]));
  }
  coordinator_address_ = absl::StrJoin(coordinator_addresses_, ",");
  experts_.resize(static_cast<size_t>(options_.experts));
  for (int i = 0; i < options_.experts; ++i) RestartExpert(i);
  for (int i = 0; i < options_.trunks; ++i) {
    const std::string name = absl::StrCat("trunk-", i);
    std::vector<std::string> flags = {
        "--model",  options_.model, "--coordinator", coordinator_address_,
        "--listen", "127.0.0.1:0",  "--name",        name};
    flags.insert(flags.end(), options_.trunk_flags.begin(),
                 options_.trunk_flags.end());
    trunks_.push_back(Spawn("trunk-worker", name, flags));
  }
  for (int i = 0; i < options_.trunks; ++i) {
    TL_ASSIGN_OR_RETURN(std::string address,
                        AwaitAddress(absl::StrCat("trunk-", i), trunk(i)));
    trunk_addresses_.push_back(address);
    const auto stub = NewStub(i);
    const bool serving = Eventually(kStartLimit, [&] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::seconds(2));
      v1::GetModelResponse model;
      return stub->GetModel(&context, {}, &model).ok() &&
             model.placement_version() > 0;
    });
    if (!serving)
      return absl::DeadlineExceededError(
          absl::StrCat("trunk-", i, " never had an active placement"));
  }
  return absl::OkStatus();
}

void ProcessCluster::SpawnCoordinator(int i, const std::string& listen) {
  std::vector<std::string> flags = {
      "--listen",         listen,
      "--expert-workers", absl::StrCat(options_.experts),
      "--replicas",       absl::StrCat(options_.replicas)};
  flags.insert(flags.end(), options_.coordinator_flags.begin(),
               options_.coordinator_flags.end());
  coordinators_[static_cast<size_t>(i)] =
      Spawn("coordinator", CoordinatorName(i), flags);
}

absl::Status ProcessCluster::RestartCoordinator(int i) {
  const size_t at = static_cast<size_t>(i);
  std::filesystem::remove(absl::StrCat(dir_.path(), "/", CoordinatorName(i)));
  SpawnCoordinator(i, coordinator_addresses_[at]);
  return AwaitAddress(CoordinatorName(i), *coordinators_[at]).status();
}

void ProcessCluster::RestartExpert(int i) {
  const std::string name = absl::StrCat("expert-", i);
  const auto model = expert_models_.find(i);
  std::vector<std::string> flags = {
      "--model",
      model == expert_models_.end() ? options_.model : model->second,
      "--coordinator",
      coordinator_address_,
      "--listen",
      "127.0.0.1:0",
      "--name",
      name};
  flags.insert(flags.end(), options_.expert_flags.begin(),
               options_.expert_flags.end());
  const std::vector<std::string>& own = expert_flags_[i];
  flags.insert(flags.end(), own.begin(), own.end());
  experts_[static_cast<size_t>(i)] = Spawn("expert-worker", name, flags);
}

int ProcessCluster::AddExpert(const std::string& model,
                              const std::vector<std::string>& flags) {
  const int i = static_cast<int>(experts_.size());
  expert_models_[i] = model;
  expert_flags_[i] = flags;
  experts_.emplace_back();
  RestartExpert(i);
  return i;
}

std::unique_ptr<ChildProcess> ProcessCluster::Spawn(
    const std::string& role, const std::string& name,
    std::vector<std::string> flags) {
  const bool other =
      role == "coordinator" && !options_.coordinator_program.empty();
  std::vector<std::string> argv = {
      other ? options_.coordinator_program : TRUNKLINE_BINARY, role,
      "--address-file", absl::StrCat(dir_.path(), "/", name)};
  argv.insert(argv.end(), flags.begin(), flags.end());
  const std::string log = absl::StrCat(dir_.path(), "/", name, ".log");
  return std::make_unique<ChildProcess>(
      ChildProcess::Options{.argv = argv,
                            .environment = options_.environment,
                            .stdout_file = log,
                            .stderr_file = log,
                            .stdin_text = ""});
}

absl::StatusOr<std::string> ProcessCluster::AwaitAddress(
    const std::string& name, ChildProcess& process) {
  const std::string file = absl::StrCat(dir_.path(), "/", name);
  std::string address;
  Eventually(kStartLimit, [&] {
    address = ReadFile(file);
    return !address.empty() || !process.Running();
  });
  while (!address.empty() && address.back() == '\n') address.pop_back();
  if (address.empty())
    return absl::UnavailableError(
        absl::StrCat(name, " did not announce its address"));
  return address;
}

std::unique_ptr<v1::Generation::Stub> ProcessCluster::NewStub(int trunk) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt("grpc.use_local_subchannel_pool",
                   1);  // a connection of its own
  return v1::Generation::NewStub(Connected(grpc::CreateCustomChannel(
      trunk_address(trunk), grpc::InsecureChannelCredentials(), arguments)));
}

std::string ProcessCluster::Logs() const {
  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    if (entry.path().extension() != ".log") continue;
    absl::StrAppend(&all, "--- ", entry.path().filename().string(), "\n",
                    ReadFile(entry.path().string()), "\n");
  }
  return all;
}

}  // namespace trunkline::testing
