// trunkline generate: one prompt to a server, its text to the terminal as it is
// made.

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

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
#include "control/status_to_grpc.h"
#include "model/tokenizer_utf8.h"
#include "proto/generation.grpc.pb.h"

namespace trunkline::cli {
namespace {

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

absl::Status Stream(const GenerateFlags& flags, const std::string& prompt) {
  const auto channel = DialServer(flags.server);
  const absl::Status ready = WaitForServer(flags.server, channel, flags.wait);
  if (!ready.ok()) return ready;

  grpc::ClientContext context;
  if (flags.timeout != absl::InfiniteDuration()) {
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoMilliseconds(flags.timeout));
  }
  const auto stub = v1::Generation::NewStub(channel);
  Printer printer(flags.as_json);
  v1::GenerateChunk chunk, last;
  grpc::Status status;
  {
    const CancelOnSignal cancel(&context);
    const auto reader =
        stub->GenerateStream(&context, MakeGenerateRequest(flags, prompt));
    while (reader->Read(&chunk)) {
      printer.Print(chunk);
      if (chunk.has_usage()) last = chunk;
    }
    status = reader->Finish();
  }
  printer.EndText();
  if (!status.ok()) {
    return absl::Status(
        control::FromGrpc(status).code(),
        absl::StrCat(flags.server, ": ", status.error_message()));
  }
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
      "Exit codes: 0 done, 1 failed (stderr has the gRPC code and the reason), "
      "2 wrong usage,\n130 interrupted.");
  auto flags = std::make_shared<GenerateFlags>();
  AddGenerateFlags(command, flags.get());
  command->callback(
      [selected, flags] { *selected = [flags] { return Generate(*flags); }; });
}

}  // namespace trunkline::cli
