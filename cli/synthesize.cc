// trunkline synthesize: a checkpoint with random weights at a true shape, for
// benchmarks and for trying a cluster without a download.

#include "model/synthesize.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/flags.h"
#include "cli/format.h"
#include "cli/status_line.h"
#include "common/compute_threads.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "model/census.h"
#include "model/shape_presets.h"

namespace trunkline::cli {
namespace {

struct SynthesizeFlags {
  std::string shape, layers, out;
  std::string dtype = "bf16";
  int64_t vocab_size = 0;
  uint64_t seed = 0;
  int64_t shard_bytes = int64_t{4} << 30;
  int threads = 0;
  bool no_mtp = false;
};

// A name, or the path of a config.json.
absl::StatusOr<model::SynthesisSpec> ShapeFromFlag(const std::string& shape) {
  absl::StatusOr<model::SynthesisSpec> named = model::NamedShape(shape);
  if (named.ok()) return named;
  std::ifstream file(shape, std::ios::binary);
  if (!file.is_open()) {
    return absl::NotFoundError(
        absl::StrCat("--shape \"", shape, "\": neither a file nor one of ",
                     absl::StrJoin(model::ShapeNames(), ", ")));
  }
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  TL_ASSIGN_OR_RETURN(const model::ModelConfig config,
                      model::ParseModelConfig(text, shape));
  return model::ShapeOf(config);
}

DType DTypeFromFlag(const std::string& dtype) {
  if (dtype == "f32") return DType::kF32;
  if (dtype == "f16") return DType::kF16;
  return DType::kBF16;
}

absl::StatusOr<model::SynthesisSpec> SpecFromFlags(
    const SynthesizeFlags& flags) {
  TL_ASSIGN_OR_RETURN(model::SynthesisSpec spec, ShapeFromFlag(flags.shape));
  if (!flags.layers.empty()) {
    TL_RETURN_IF_ERROR(
        Annotate(model::SetLayers(flags.layers, &spec.config), "--layers"));
  }
  if (flags.no_mtp) spec.config.mtp_layers.clear();
  if (flags.vocab_size > 0) spec.config.vocab_size = flags.vocab_size;
  spec.dtype = DTypeFromFlag(flags.dtype);
  if (spec.router_dtype != DType::kF32) spec.router_dtype = spec.dtype;
  spec.seed = flags.seed;
  spec.shard_bytes_max = flags.shard_bytes;
  return spec;
}

class ProgressPrinter {
 public:
  void Show(int64_t done, int64_t total) {
    const absl::Time now = absl::Now();
    if (now < next_) return;
    next_ = now + absl::Milliseconds(100);
    const absl::Duration taken = now - begin_;
    const double part = static_cast<double>(done) / static_cast<double>(total);
    line_.Draw(absl::StrFormat(
        "%s %s of %s, %s/s, %s left", ProgressBar(done, total, 30, 0),
        HumanBytes(done), HumanBytes(total),
        HumanBytes(static_cast<int64_t>(static_cast<double>(done) /
                                        absl::ToDoubleSeconds(taken))),
        HumanDuration(taken * ((1.0 - part) / part))));
  }
  void End() { line_.Clear(); }
  absl::Duration taken() const { return absl::Now() - begin_; }

 private:
  StatusLine line_;
  const absl::Time begin_ = absl::Now();
  absl::Time next_ = begin_;
};

absl::Status Synthesize(const SynthesizeFlags& flags) {
  TL_ASSIGN_OR_RETURN(const model::SynthesisSpec spec, SpecFromFlags(flags));
  ThreadPool pool(ComputeThreads(flags.threads, {}));
  ProgressPrinter progress;
  const absl::Status written = model::SynthesizeCheckpoint(
      spec, flags.out,
      [&progress](int64_t done, int64_t total) { progress.Show(done, total); },
      &pool);
  progress.End();
  TL_RETURN_IF_ERROR(written);
  const model::PartCensus counted =
      model::TakeCensus(spec.config, spec.dtype).total();
  std::printf("%s: layers %s, vocabulary %d, %s parameters, %s, in %s\n",
              flags.out.c_str(), spec.config.LayerPattern().c_str(),
              static_cast<int>(spec.config.vocab_size),
              HumanCount(counted.parameters).c_str(),
              HumanBytes(counted.bytes).c_str(),
              HumanDuration(progress.taken()).c_str());
  return absl::OkStatus();
}

void AddShapeFlags(CLI::App* command, SynthesizeFlags* f) {
  command
      ->add_option("--shape", f->shape,
                   absl::StrCat(absl::StrJoin(model::ShapeNames(), ", "),
                                ", or a config.json whose shape to take"))
      ->type_name("NAME|FILE")
      ->required();
  command
      ->add_option("--layers", f->layers,
                   "Layer table: M mamba, * attention, E moe, - dense, each as "
                   "the shape has it (default: the shape's own)")
      ->type_name("PATTERN");
  command
      ->add_option("--vocab", f->vocab_size,
                   "Vocabulary size (default: the shape's)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_flag("--no-mtp", f->no_mtp,
                    "Leave out the prediction head that lightning, super and "
                    "ultra have");
  command->add_option("--dtype", f->dtype, "Element type: bf16, f16 or f32")
      ->type_name("TYPE")
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "f16", "f32"}));
}

}  // namespace

void AddSynthesizeCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "synthesize", "Write a checkpoint with random weights at a true shape");
  command->footer(
      "The same flags give the same bytes on every machine, whatever the "
      "threads and the shards.\n"
      "Examples:\n"
      "  trunkline synthesize --shape tiny /tmp/tiny\n"
      "  trunkline synthesize --shape nano --layers 'MEM*E' --vocab 8192 "
      "/tmp/nano-slice\n"
      "  trunkline up --model /tmp/nano-slice");
  auto flags = std::make_shared<SynthesizeFlags>();
  SynthesizeFlags* f = flags.get();
  command->add_option("OUT", f->out, "A new or empty directory")->required();
  AddShapeFlags(command, f);
  command->add_option("--seed", f->seed, "Other weights for another seed")
      ->type_name("N")
      ->capture_default_str();
  AddBytesFlag(command, "--shard-size", &f->shard_bytes,
               "Of one safetensors file; 0: all in one");
  command->add_option("--threads", f->threads, "Default: one per cpu")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command->callback([selected, flags] {
    *selected = [flags]() -> int {
      const absl::Status status = Synthesize(*flags);
      return status.ok() ? kExitOk : ReportFailure("synthesize", status);
    };
  });
}

}  // namespace trunkline::cli
