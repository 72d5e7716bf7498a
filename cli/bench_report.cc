#include "cli/bench_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/format.h"

namespace trunkline::cli {
namespace {

using trunk::StepPhase;

double Of(const PhaseSeconds& phases, StepPhase phase) {
  return phases[static_cast<size_t>(phase)];
}

std::string Giga(double value, const char* unit) {
  return absl::StrFormat("%.1f %s", value * 1e-9, unit);
}

std::string Share(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f%%", 100 * part / whole) : "-";
}

// Which limit prefill is held to.
const char* ArithmeticName(const BenchReport& r) {
  return r.numerics == kernels::Numerics::kBf16Dot ? "dot" : "fma";
}

std::string DotText(const BenchReport& r) {
  if (r.dot_all_threads == 0) return "";
  return absl::StrCat("\n  dot     ", Giga(r.dot_one_thread, ""),
                      "GFLOP/s with 1 thread, ", Giga(r.dot_all_threads, ""),
                      "GFLOP/s with ", r.threads, " (bf16 pairs)");
}

std::string LimitsText(const BenchReport& r) {
  std::string text = absl::StrCat(
      "Limits of this machine, now:\n  read    ", Giga(r.read_one_thread, ""),
      "GB/s with 1 thread, ", Giga(r.read_all_threads, ""), "GB/s with ",
      r.threads, "\n  fma     ", Giga(r.fma_one_thread, ""),
      "GFLOP/s with 1 thread, ", Giga(r.fma_all_threads, ""), "GFLOP/s with ",
      r.threads, DotText(r), "\n  cache   ", Giga(r.cache_copy, ""),
      "GB/s copied by 1 thread\n  fresh   ", Giga(r.fresh_memory_rate, ""),
      "GB/s first written to new memory with ", r.threads, "\n");
  absl::StrAppendFormat(&text, "  fork    %.1f us to all threads and back\n",
                        r.fork_join_seconds * 1e6);
  if (r.ping_pong_seconds > 0) {
    absl::StrAppendFormat(&text, "  ping    %.1f us there and back, 8 bytes\n",
                          r.ping_pong_seconds * 1e6);
  }
  return text;
}

std::string LoadText(const BenchReport& r) {
  const double rate = static_cast<double>(r.weight_bytes) / r.load_seconds;
  return absl::StrCat(
      "Loading:\n  ", HumanBytes(r.weight_bytes), " packed in ",
      absl::StrFormat("%.2f s: ", r.load_seconds), Giga(rate, "GB/s"),
      "; the page cache gives ", Giga(r.page_cache_rate, "GB/s"),
      absl::StrFormat(", ratio %.2f\n", rate / r.page_cache_rate),
      "  resident ", HumanBytes(r.resident_bytes),
      absl::StrFormat(", %.2f of the weights; peak ",
                      static_cast<double>(r.resident_bytes) /
                          static_cast<double>(r.weight_bytes)),
      HumanBytes(r.resident_peak_bytes),
      absl::StrFormat(", %.2f of them\n",
                      static_cast<double>(r.resident_peak_bytes) /
                          static_cast<double>(r.weight_bytes)));
}

std::string StepsText(const BenchReport& r) {
  using Align = Table::Align;
  Table table({"case", "tok/s", "ms", "figure", "limit", "ratio", "low..high",
               "experts"},
              {Align::kLeft, Align::kRight, Align::kRight, Align::kRight,
               Align::kRight, Align::kRight, Align::kRight, Align::kRight});
  for (const StepFigures& step : r.steps) {
    const char* unit = step.what.prefill ? "GFLOP/s" : "GB/s";
    table.AddRow(
        {step.what.Name(), absl::StrFormat("%.1f", step.tokens_per_second),
         absl::StrFormat("%.2f", step.seconds * 1e3), Giga(step.rate, unit),
         Giga(step.limit, unit), absl::StrFormat("%.3f", step.ratio),
         absl::StrFormat("%.2f..%.2f", step.ratio_low, step.ratio_high),
         absl::StrFormat("%.1f", step.experts)});
  }
  return table.ToString();
}

std::string PhasesText(const BenchReport& r) {
  using Align = Table::Align;
  std::vector<std::string> header = {"case"};
  std::vector<Align> align = {Align::kLeft};
  for (const PhaseGroup& group : PhaseGroups({})) {
    header.push_back(group.name);
    align.push_back(Align::kRight);
  }
  header.emplace_back("small parts");
  align.push_back(Align::kRight);
  Table table(header, align);
  for (const StepFigures& step : r.steps) {
    double whole = 0;
    for (const double seconds : step.phases) whole += seconds;
    std::vector<std::string> row = {step.what.Name()};
    for (const PhaseGroup& group : PhaseGroups(step.phases))
      row.push_back(Share(group.seconds, whole));
    row.push_back(Share(SmallPartsSeconds(step.phases), whole));
    table.AddRow(row);
  }
  return table.ToString();
}

nlohmann::ordered_json StepJson(const StepFigures& step,
                                const char* arithmetic) {
  nlohmann::ordered_json json;
  json["name"] = step.what.Name();
  json["tokens_per_second"] = step.tokens_per_second;
  json["seconds"] = step.seconds;
  json["bound"] = step.what.prefill ? arithmetic : "memory";
  json["work"] = step.work;
  json["figure"] = step.rate;
  json["limit"] = step.limit;
  json["ratio"] = step.ratio;
  json["ratio_low"] = step.ratio_low;
  json["ratio_high"] = step.ratio_high;
  json["experts"] = step.experts;
  for (size_t p = 0; p < step.phases.size(); ++p) {
    const auto phase = static_cast<StepPhase>(p);
    json["phase_seconds"][std::string(trunk::StepPhaseName(phase).data(),
                                      trunk::StepPhaseName(phase).size())] =
        step.phases[p];
  }
  json["small_parts_seconds"] = SmallPartsSeconds(step.phases);
  return json;
}

}  // namespace

std::vector<PhaseGroup> PhaseGroups(const PhaseSeconds& p) {
  return {
      {"mixer", Of(p, StepPhase::kMambaProject) + Of(p, StepPhase::kMambaScan) +
                    Of(p, StepPhase::kAttentionProject) +
                    Of(p, StepPhase::kAttention) + Of(p, StepPhase::kDense)},
      {"router", Of(p, StepPhase::kRouter)},
      {"dispatch", Of(p, StepPhase::kDispatch)},
      {"experts", Of(p, StepPhase::kExperts) + Of(p, StepPhase::kShared) +
                      Of(p, StepPhase::kLatent)},
      {"combine", Of(p, StepPhase::kCombine)},
      {"head", Of(p, StepPhase::kHead)},
      {"rest", Of(p, StepPhase::kNorm) + Of(p, StepPhase::kSample) +
                   Of(p, StepPhase::kRest)},
  };
}

double SmallPartsSeconds(const PhaseSeconds& p) {
  return Of(p, StepPhase::kMambaScan) + Of(p, StepPhase::kAttention) +
         Of(p, StepPhase::kRouter) + Of(p, StepPhase::kNorm) +
         Of(p, StepPhase::kCombine) + Of(p, StepPhase::kSample);
}

std::string BenchText(const BenchReport& r) {
  std::string text = absl::StrCat(
      r.model, ": layers ", r.layers, ", ", r.threads, " threads, ", r.simd,
      ", class ", kernels::NumericsName(r.numerics), ", ",
      r.expert_workers == 0 ? "experts in this process"
                            : absl::StrCat(r.expert_workers, " expert workers"),
      ", medians of ", r.repeats, "\n\n", LimitsText(r), "\n");
  if (r.weight_bytes > 0 && r.load_seconds > 0) text += LoadText(r) + "\n";
  absl::StrAppend(
      &text,
      "Steps (decode/STREAMS/CONTEXT against read bandwidth, prefill/TOKENS "
      "against ",
      ArithmeticName(r), " peak;\nlimits measured around each repeat):\n");
  text += StepsText(r) +
          "\nShares of a step (small parts: scan, attention, router, norms, "
          "combine, sampling):\n" +
          PhasesText(r);
  for (const std::string& why : r.skipped)
    absl::StrAppend(&text, "left out: ", why, "\n");
  return text;
}

nlohmann::ordered_json BenchJson(const BenchReport& r) {
  nlohmann::ordered_json json;
  json["format"] = "trunkline-bench-1";
  json["model"] = {{"directory", r.model}, {"layers", r.layers}};
  json["run"] = {{"threads", r.threads},
                 {"simd", r.simd},
                 {"numerics", kernels::NumericsName(r.numerics)},
                 {"expert_workers", r.expert_workers},
                 {"repeats", r.repeats}};
  json["limits"] = {{"read_one_thread", r.read_one_thread},
                    {"read_all_threads", r.read_all_threads},
                    {"fma_one_thread", r.fma_one_thread},
                    {"fma_all_threads", r.fma_all_threads},
                    {"dot_one_thread", r.dot_one_thread},
                    {"dot_all_threads", r.dot_all_threads},
                    {"cache_copy", r.cache_copy},
                    {"fresh_memory_rate", r.fresh_memory_rate},
                    {"fork_join_seconds", r.fork_join_seconds},
                    {"ping_pong_seconds", r.ping_pong_seconds}};
  json["load"] = {{"weight_bytes", r.weight_bytes},
                  {"seconds", r.load_seconds},
                  {"page_cache_rate", r.page_cache_rate},
                  {"resident_bytes", r.resident_bytes},
                  {"resident_peak_bytes", r.resident_peak_bytes}};
  json["steps"] = nlohmann::ordered_json::array();
  for (const StepFigures& step : r.steps)
    json["steps"].push_back(StepJson(step, ArithmeticName(r)));
  json["skipped"] = r.skipped;
  return json;
}

}  // namespace trunkline::cli
