#include "cli/generate_request.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/flags.h"
#include "cli/format.h"

namespace trunkline::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void AddSamplingFlags(CLI::App* command, GenerateFlags* f) {
  const std::string model = " (default: the model's generation_config.json)";
  command
      ->add_option("--max-tokens", f->max_tokens,
                   "Output tokens (default: as many as fit)")
      ->type_name("N")
      ->check(CLI::Range(1u, std::numeric_limits<uint32_t>::max()));
  command->add_option("--temperature", f->temperature, "0: greedy" + model)
      ->type_name("T")
      ->check(FiniteIn({0, kInfinity}));
  command
      ->add_option("--top-k", f->top_k,
                   "Of the K most likely tokens; 0: off" + model)
      ->type_name("K")
      ->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
  command
      ->add_option("--top-p", f->top_p,
                   "Of the most likely tokens that add up to P; 1: off" + model)
      ->type_name("P")
      ->check(FiniteIn({0, 1, /*open_least=*/true}));
  command
      ->add_option("--min-p", f->min_p,
                   "Of the tokens at least P times as likely as the best; 0: "
                   "off")
      ->type_name("P")
      ->check(FiniteIn({0, 1, false, /*open_most=*/true}));
  command
      ->add_option("--repetition-penalty", f->repetition_penalty,
                   "Divides the scores of tokens seen in prompt and output; 1: "
                   "off")
      ->type_name("X")
      ->check(FiniteIn({0, kInfinity, /*open_least=*/true}));
  command
      ->add_option("--presence-penalty", f->presence_penalty,
                   "Taken off the scores of tokens seen in the output; 0: off")
      ->type_name("X")
      ->check(FiniteIn({-2, 2}));
  command
      ->add_option("--seed", f->seed,
                   "The same seed and request give the same text (default: "
                   "chosen by the server)")
      ->type_name("N")
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            // The library would let -1 wrap around.
            uint64_t seed = 0;
            if (absl::SimpleAtoi(text, &seed)) return "";
            return absl::StrCat("\"", text,
                                "\" is not a number from 0 to 2^64-1");
          },
          ""));
}

void AddTextFlags(CLI::App* command, GenerateFlags* f) {
  command
      ->add_option("--stop", f->stop,
                   "A string that ends the text in front of it; may be given "
                   "more than once")
      ->type_name("TEXT")
      ->allow_extra_args(false)  // the prompt may follow
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            return text.empty() ? "an empty string ends every text" : "";
          },
          ""));
  command
      ->add_option("--stop-token", f->stop_token_ids,
                   "A token id that ends the text; may be given more than once")
      ->type_name("ID")
      ->allow_extra_args(false)
      ->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
  command->add_flag("--ignore-eos", f->ignore_eos,
                    "Go on after the model's end tokens");
  command->add_flag("--raw", f->raw,
                    "Do not let the tokenizer add its tokens to the prompt");
  command->add_flag("--no-parse-special", f->no_parse_special,
                    "Special tokens spelled in the prompt stay text");
  command->add_flag("--include-special", f->include_special,
                    "Show special tokens in the output");
  command
      ->add_option("--logprobs", f->logprobs,
                   "Log-probabilities of each token and of the N best; with "
                   "--json")
      ->type_name("N")
      ->check(CLI::Range(1u, 20u));
  command->add_flag("--prompt-logprobs", f->prompt_logprobs,
                    "Of the prompt's tokens, too; with --json");
}

const char* ReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "unknown";
  }
}

}  // namespace

void AddGenerateFlags(CLI::App* command, GenerateFlags* f) {
  command->add_option("PROMPT", f->prompt,
                      "The text to go on from (default: read from stdin)");
  command
      ->add_option("--prompt-tokens", f->prompt_tokens,
                   "The prompt as token ids, separated by commas")
      ->type_name("IDS")
      ->delimiter(',')
      ->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
  command
      ->add_option("--server", f->servers,
                   "A trunk worker's API address; several, separated by "
                   "commas: when one goes away, the next goes on with the text")
      ->type_name("HOST:PORT")
      ->delimiter(',')
      ->allow_extra_args(false)  // the prompt may follow
      ->check(CLI::Validator(
          [](const std::string& text) {
            return std::string(CheckAddress(text, Port::kDialable).message());
          },
          ""))
      ->required();
  AddSamplingFlags(command, f);
  AddTextFlags(command, f);
  command->add_flag("--wait-for-capacity", f->wait_for_capacity,
                    "Queue when the server is full instead of failing");
  AddDurationFlag(command, "--wait", &f->wait,
                  "How long to wait for a server to be ready");
  AddDurationFlag(command, "--timeout", &f->timeout,
                  "Deadline of the whole request");
  command->add_flag("--json", f->as_json,
                    "One JSON object per chunk instead of text");
}

absl::Status CheckGenerateFlags(const GenerateFlags& flags) {
  if (flags.prompt.has_value() && !flags.prompt_tokens.empty()) {
    return absl::InvalidArgumentError(
        "PROMPT and --prompt-tokens exclude each other");
  }
  if (!flags.as_json && flags.logprobs > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--logprobs ", flags.logprobs, " needs --json to be shown"));
  }
  if (!flags.as_json && flags.prompt_logprobs) {
    return absl::InvalidArgumentError(
        "--prompt-logprobs needs --json to be shown");
  }
  if (flags.timeout == absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "--timeout \"0\" leaves no time for the request");
  }
  return absl::OkStatus();
}

v1::GenerateRequest MakeGenerateRequest(const GenerateFlags& flags,
                                        const std::string& prompt_text) {
  v1::GenerateRequest request;
  if (flags.prompt_tokens.empty()) {
    request.set_text(prompt_text);
  } else {
    request.mutable_tokens()->mutable_ids()->Add(flags.prompt_tokens.begin(),
                                                 flags.prompt_tokens.end());
  }
  v1::SamplingParams* sampling = request.mutable_sampling();
  if (flags.temperature) sampling->set_temperature(*flags.temperature);
  if (flags.top_k) sampling->set_top_k(*flags.top_k);
  if (flags.top_p) sampling->set_top_p(*flags.top_p);
  if (flags.min_p) sampling->set_min_p(*flags.min_p);
  if (flags.repetition_penalty) {
    sampling->set_repetition_penalty(*flags.repetition_penalty);
  }
  if (flags.presence_penalty) {
    sampling->set_presence_penalty(*flags.presence_penalty);
  }
  if (flags.seed) sampling->set_seed(*flags.seed);
  request.set_max_tokens(flags.max_tokens);
  for (const std::string& stop : flags.stop) request.add_stop(stop);
  for (const int32_t id : flags.stop_token_ids) request.add_stop_token_ids(id);
  request.set_ignore_eos(flags.ignore_eos);
  request.set_logprobs(flags.logprobs);
  request.set_prompt_logprobs(flags.prompt_logprobs);
  request.set_add_special_tokens(!flags.raw);
  request.set_no_parse_special_tokens(flags.no_parse_special);
  request.set_include_special_tokens(flags.include_special);
  request.set_wait_for_capacity(flags.wait_for_capacity);
  return request;
}

std::string UsageLine(const v1::Usage& usage, v1::FinishReason reason,
                      const std::string& stop) {
  std::string line = absl::StrCat("[", usage.output_tokens(), " tokens");
  // The first token is prefill's: decoding made the others.
  const bool decoded = usage.output_tokens() > 1 && usage.decode_seconds() > 0;
  const double seconds = decoded
                             ? usage.decode_seconds()
                             : usage.prefill_seconds() + usage.decode_seconds();
  const uint32_t made =
      decoded ? usage.output_tokens() - 1 : usage.output_tokens();
  if (seconds > 0) {
    absl::StrAppendFormat(&line, ", %.1f tok/s", made / seconds);
  }
  absl::StrAppend(&line, "; prompt ", usage.prompt_tokens(), " tokens in ",
                  HumanDuration(absl::Seconds(usage.prefill_seconds())));
  if (usage.queue_seconds() >= 0.001) {
    absl::StrAppend(&line, " after ",
                    HumanDuration(absl::Seconds(usage.queue_seconds())),
                    " in the queue");
  }
  if (usage.routes_dropped() > 0) {
    absl::StrAppend(&line, "; ", usage.routes_dropped(), " of ",
                    usage.routes_selected(), " routes dropped");
  }
  absl::StrAppend(&line, "; end: ", ReasonName(reason));
  if (!stop.empty()) absl::StrAppend(&line, " at \"", stop, "\"");
  return line + "]";
}

}  // namespace trunkline::cli
