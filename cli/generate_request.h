#pragma once

// The flags of `trunkline generate` and the request they make. Pure but for the
// command line library.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/generation.pb.h"

namespace trunkline::cli {

struct GenerateFlags {
  std::vector<std::string> servers;  // in the order in which they are asked
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_tokens;
  uint32_t max_tokens = 0;
  std::optional<float> temperature, top_p, min_p;
  std::optional<float> repetition_penalty, presence_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool raw = false;
  bool no_parse_special = false;
  bool include_special = false;
  uint32_t logprobs = 0;
  bool prompt_logprobs = false;
  bool wait_for_capacity = false;
  bool as_json = false;
  absl::Duration wait = absl::Seconds(60);
  absl::Duration timeout = absl::InfiniteDuration();
};

void AddGenerateFlags(CLI::App* command, GenerateFlags* flags);
// INVALID_ARGUMENT naming the flags that do not go together.
absl::Status CheckGenerateFlags(const GenerateFlags& flags);
// prompt_text: the argument or what stdin held.
v1::GenerateRequest MakeGenerateRequest(const GenerateFlags& flags,
                                        const std::string& prompt_text);

// "[24 tokens, 96.1 tok/s; prompt 11 tokens in 35 ms; stop: length]"
std::string UsageLine(const v1::Usage& usage, v1::FinishReason reason,
                      const std::string& stop);

}  // namespace trunkline::cli
