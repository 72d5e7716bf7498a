// trunkline generate: one prompt to a server, its text to the terminal as it is
// made.

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/generate_request.h"
#include "cli/server_readiness.h"
#include "cli/stop_signals.h"
#include "cli/stream_progress.h"
#include "common/clock.h"
#include "control/status_to_grpc.h"
#include "model/tokenizer_utf8.h"
#include "proto/generation.grpc.pb.h"

namespace trunkline::cli {
namespace {

// Before another server is asked when the last one gave nothing.
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(50);

// Cancels a call when a stop signal comes; ends with its scope.
class CancelOnSignal {
 public:
  explicit CancelOnSignal(grpc::ClientContext* context)
      : thread_([this, context] {
          StopSignals::Wait(absl::InfiniteDuration());
          if (!done_) context->TryCancel();
        }) {}
  ~CancelOnSignal() {
    done_ = true;
    StopSignals::Release();
    thread_.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

class Printer {
 public:
  explicit Printer(bool as_json) : as_json_(as_json) {}

  void Print(const v1::GenerateChunk& chunk) {
    if (as_json_) {
      google::protobuf::util::JsonPrintOptions options;
      options.preserve_proto_field_names = true;
      std::string line;
      if (google::protobuf::util::MessageToJsonString(chunk, &line, options)
              .ok()) {
        std::printf("%s\n", line.c_str());
      }
    } else {
      std::fwrite(chunk.text().data(), 1, chunk.text().size(), stdout);
      if (!chunk.text().empty()) last_ = chunk.text().back();
    }
    std::fflush(stdout);
  }
  // A terminal's next line starts at its left; a pipe gets the text alone.
  void EndText() {
    if (!as_json_ && last_ != '\n' && isatty(STDOUT_FILENO) != 0) {
      std::fputc('\n', stdout);
      std::fflush(stdout);
    }
  }

 private:
  const bool as_json_;
  char last_ = '\n';
};

// One stream, printed as it comes. Its status as the server gave it.
absl::Status StreamOnce(const std::shared_ptr<grpc::Channel>& channel,
                        absl::Time deadline, StreamProgress* progress,
                        Printer* printer) {
  grpc::ClientContext context;
  if (deadline != absl::InfiniteFuture()) {
    context.set_deadline(
        std::chrono::system_clock::now() +
        absl::ToChronoMilliseconds(deadline - Clock::Monotonic().Now()));
  }
  const auto stub = v1::Generation::NewStub(channel);
  v1::GenerateChunk chunk;
  const CancelOnSignal cancel(&context);
  const auto reader = stub->GenerateStream(&context, progress->request());
  while (reader->Read(&chunk)) {
    printer->Print(chunk);
    progress->Take(chunk);
  }
  return control::FromGrpc(reader->Finish());
}

absl::Status Named(const std::string& server, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(server, ": ", status.message()));
}

// Where a stream breaks off because its server went away or has no room, the
// next server goes on with it, for as long as tokens keep coming: --wait bounds
// the time without one.
absl::Status Stream(const GenerateFlags& flags, const std::string& prompt) {
  const absl::Time deadline = Clock::Monotonic().Now() + flags.timeout;
  StreamProgress progress(MakeGenerateRequest(flags, prompt));
  Printer printer(flags.as_json);
  absl::Time waits_since = Clock::Monotonic().Now();
  size_t next = 0;
  while (true) {
    const absl::Duration left =
        waits_since + flags.wait - Clock::Monotonic().Now();
    const absl::StatusOr<ReadyServer> server = WaitForAnyServer(
        flags.servers, next, std::max(left, absl::ZeroDuration()));
    if (!server.ok()) {
      printer.EndText();
      return server.status();
    }
    const std::string& address = flags.servers[server->index];
    const int tokens_before = progress.tokens();
    const absl::Status status =
        StreamOnce(server->channel, deadline, &progress, &printer);
    if (status.ok()) break;
    if (progress.tokens() > tokens_before)
      waits_since = Clock::Monotonic().Now();
    if (flags.servers.size() == 1 || !progress.MayGoOn(status) ||
        Clock::Monotonic().Now() >= waits_since + flags.wait) {
      printer.EndText();
      return Named(address, status);
    }
    printer.EndText();
    std::fprintf(stderr, "trunkline generate: %s after %d tokens; going on\n",
                 Named(address, status).ToString().c_str(), progress.tokens());
    next = (server->index + 1) % flags.servers.size();
    // A server that refuses says when to come back; the others may be asked at
    // once, and are, before it is its turn again.
    const absl::Duration pause = progress.tokens() > tokens_before
                                     ? absl::ZeroDuration()
                                     : kBetweenAttempts;
    if (StopSignals::Wait(pause))
      return absl::CancelledError("interrupted between two servers");
  }
  printer.EndText();
  const v1::GenerateChunk& last = progress.last();
  std::fprintf(
      stderr, "%s\n",
      UsageLine(last.usage(), last.finish_reason(), last.stop()).c_str());
  return absl::OkStatus();
}

int Generate(const GenerateFlags& flags) {
  const absl::Status valid = CheckGenerateFlags(flags);
  if (!valid.ok()) return ReportUsage("generate", std::string(valid.message()));
  std::string prompt = flags.prompt.value_or("");
  if (!flags.prompt.has_value() && flags.prompt_tokens.empty()) {
    if (isatty(STDIN_FILENO) != 0) {
      return ReportUsage("generate",
                         "PROMPT is missing: give it as an argument or on "
                         "stdin");
    }
    prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  const size_t broken = model::FindInvalidUtf8(prompt);
  if (broken != absl::string_view::npos) {
    return ReportUsage("generate",
                       absl::StrCat("PROMPT is not UTF-8 at byte ", broken));
  }
  StopSignals::Install();
  StopSignals::Orderly();
  const absl::Status status = Stream(flags, prompt);
  if (status.ok()) return kExitOk;
  ReportFailure("generate", status);
  return StopSignals::Received() != 0 && absl::IsCancelled(status)
             ? kExitInterrupted
             : kExitFailed;
}

}  // namespace

void AddGenerateCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "generate", "Send a prompt to a server and print the text as it comes");
  command->footer(
      "Text goes to stdout, everything else to stderr.\n"
      "Examples:\n"
      "  trunkline generate --server 127.0.0.1:7080 \"In the beginning\"\n"
      "  echo -n \"Blessed are\" | trunkline generate --server 127.0.0.1:7080 "
      "--temperature 0\n"
      "  trunkline generate --server 127.0.0.1:7080 --json --logprobs 3 "
      "--max-tokens 5 \"Thou shalt\"\n"
      "  trunkline generate --server 10.0.0.1:7080,10.0.0.2:7080 \"Selah\"   "
      "(the second goes on when the first goes away)\n"
      "Exit codes: 0 done, 1 failed (stderr has the gRPC code and the reason), "
      "2 wrong usage,\n130 interrupted.");
  auto flags = std::make_shared<GenerateFlags>();
  AddGenerateFlags(command, flags.get());
  command->callback(
      [selected, flags] { *selected = [flags] { return Generate(*flags); }; });
}

}  // namespace trunkline::cli
