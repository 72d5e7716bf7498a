// trunkline experts record: captures routed layers of a serving trunk worker
// into a file. start, stop and dump under it are in experts_loads.cc.

#include <grpcpp/client_context.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flags.h"
#include "cli/format.h"
#include "cli/recording_sink.h"
#include "cli/server_readiness.h"
#include "cli/status_line.h"
#include "cli/stop_signals.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"
#include "proto/route_record.grpc.pb.h"

namespace trunkline::cli {
namespace {

struct RecordFlags {
  std::string server, out;
  std::vector<uint32_t> layers;
  absl::Duration length = absl::Seconds(30);
  absl::Duration wait = absl::Seconds(60);
  int64_t buffer_bytes = int64_t{64} << 20;
};

// Asks the server to end the recording when a stop signal comes, so that the
// file gets its trailer; ends with its scope.
class StopOnSignal {
 public:
  StopOnSignal(v1::RouteRecorder::Stub* stub, grpc::ClientContext* context)
      : thread_([this, stub, context] {
          StopSignals::Wait(absl::InfiniteDuration());
          if (done_) return;
          const uint64_t id = recording_;
          v1::StopRecordingRequest request;
          request.set_recording_id(id);
          v1::StopRecordingResponse response;
          grpc::ClientContext stop;
          stop.set_deadline(std::chrono::system_clock::now() +
                            std::chrono::seconds(5));
          // Before the header has come there is nothing to keep.
          if (id == 0 || !stub->StopRecording(&stop, request, &response).ok())
            context->TryCancel();
        }) {}
  ~StopOnSignal() {
    done_ = true;
    StopSignals::Release();
    thread_.join();
  }
  void set_recording(uint64_t id) { recording_ = id; }

 private:
  std::atomic<bool> done_{false};
  std::atomic<uint64_t> recording_{0};
  std::thread thread_;
};

std::string Progress(const RecordFlags& flags, const RecordingSink& sink,
                     absl::Duration elapsed) {
  return absl::StrCat("recording ", HumanDuration(elapsed), " of ",
                      HumanDuration(flags.length), ", ", sink.records(),
                      " records, ", HumanBytes(sink.bytes_written()),
                      "  (ctrl-C ends it)");
}

v1::RecordRequest RequestOf(const RecordFlags& flags) {
  v1::RecordRequest request;
  for (uint32_t layer : flags.layers) request.add_layers(layer);
  request.set_seconds(absl::ToDoubleSeconds(flags.length));
  request.set_buffer_bytes(static_cast<uint64_t>(flags.buffer_bytes));
  return request;
}

absl::Status Receive(const RecordFlags& flags, v1::RouteRecorder::Stub* stub,
                     RecordingSink* sink) {
  const Clock& clock = Clock::Monotonic();
  grpc::ClientContext context;
  grpc::Status ended;
  absl::Status written;
  {
    StopOnSignal stop(stub, &context);
    StatusLine line;
    const auto reader = stub->Record(&context, RequestOf(flags));
    const absl::Time begun = clock.Now();
    v1::RecordChunk chunk;
    while (reader->Read(&chunk)) {
      if (written.ok()) written = sink->Add(chunk);
      if (!written.ok()) context.TryCancel();
      stop.set_recording(sink->recording_id());
      line.Draw(Progress(flags, *sink, clock.Now() - begun));
    }
    ended = reader->Finish();
  }
  TL_RETURN_IF_ERROR(written);
  TL_RETURN_IF_ERROR(sink->Finish());
  if (!ended.ok())
    return absl::Status(
        control::FromGrpc(ended).code(),
        absl::StrCat(
            flags.server, ": ", ended.error_message(),
            sink->has_header()
                ? absl::StrCat("; ", flags.out, " holds what came before")
                : ""));
  return absl::OkStatus();
}

absl::Status Record(const RecordFlags& flags) {
  const auto channel = DialServer(flags.server);
  TL_RETURN_IF_ERROR(WaitForServer(flags.server, channel, flags.wait));
  const auto stub = v1::RouteRecorder::NewStub(channel);
  RecordingSink sink(flags.out);
  TL_RETURN_IF_ERROR(Receive(flags, stub.get(), &sink));
  std::fprintf(stderr, "%s\n", sink.Summary().c_str());
  return absl::OkStatus();
}

int RunRecord(const RecordFlags& flags) {
  for (const auto& [name, value] :
       {std::pair("--server", &flags.server), {"--out", &flags.out}}) {
    if (value->empty())
      return ReportUsage("experts",
                         absl::StrCat("record: ", name, " is required"));
  }
  if (flags.length <= absl::ZeroDuration())
    return ReportUsage("experts", "--for: a recording takes some time");
  StopSignals::Install();
  StopSignals::Orderly();
  const absl::Status status = Record(flags);
  if (status.ok()) return kExitOk;
  ReportFailure("experts record", status);
  return StopSignals::Received() != 0 && absl::IsCancelled(status)
             ? kExitInterrupted
             : kExitFailed;
}

}  // namespace

void AddExpertsCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* experts =
      program->add_subcommand("experts", "What a cluster's experts are doing");
  experts->require_subcommand(1);
  CLI::App* command = experts->add_subcommand(
      "record", "Capture routed layers of a serving trunk worker");
  command->footer(
      "The file is read by trunkline replay (docs/route_records.md).\n"
      "Examples:\n"
      "  trunkline experts record --server 127.0.0.1:7080 --for 30s --out "
      "routes.tlrec\n"
      "  trunkline experts record --server 127.0.0.1:7080 --layers 1,4 --out "
      "routes.tlrec\n"
      "start, stop and dump count instead, on the coordinator and over all "
      "trunk workers:\n"
      "  trunkline experts record start --coordinator 127.0.0.1:7070\n"
      "Exit codes: 0 the file is whole (also after ctrl-C), 1 failed, 2 wrong "
      "usage.");
  auto flags = std::make_shared<RecordFlags>();
  AddAddressFlag(command, "--server", &flags->server, Port::kDialable,
                 "The trunk worker's generation API; required");
  command->add_option("--out", flags->out, "Where the recording goes; required")
      ->type_name("FILE");
  command
      ->add_option("--layers", flags->layers,
                   "Moe layers by their place in the model (default: all)")
      ->type_name("N,N")
      ->delimiter(',');
  AddDurationFlag(command, "--for", &flags->length, "How long");
  AddBytesFlag(command, "--buffer", &flags->buffer_bytes,
               "Memory on the server for what this client has not read yet; "
               "what finds no room is counted and left out");
  AddDurationFlag(command, "--wait", &flags->wait,
                  "For the server to be ready");
  command->require_subcommand(0, 1);
  AddLoadRecordCommands(command, selected);
  command->callback([command, selected, flags] {
    if (!command->get_subcommands().empty()) return;
    *selected = [flags] { return RunRecord(*flags); };
  });
}

}  // namespace trunkline::cli
