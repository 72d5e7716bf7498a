// trunkline bench: whole steps of a model against the limits of this machine.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/bench_cluster.h"
#include "cli/bench_report.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/ping_pong.h"
#include "cli/status_line.h"
#include "cli/step_bench.h"
#include "cli/worker_flags.h"
#include "common/compute_threads.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/machine_limits.h"
#include "trunk_worker/local_experts.h"

namespace trunkline::cli {
namespace {

using Seconds = std::chrono::duration<double>;

struct BenchFlags {
  std::string model, simd = "auto", numerics = "portable", json_file;
  std::vector<int64_t> streams = {1, 2, 4, 8, 16, 32};
  std::vector<int64_t> contexts = {0, 2048, 32768};
  std::vector<int64_t> prefill = {128, 512, 4096};
  int threads = 0;
  std::vector<int> cores;
  int experts = 0;
  int repeats = 5;
  double seconds = 0.3;
  int64_t rows_per_step = 512;
  bool as_json = false;
};

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return Seconds(std::chrono::steady_clock::now() - begin).count();
}

// "VmRSS" or "VmHWM" of /proc/self/status, in bytes.
int64_t StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0)
      return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

// How fast all threads together read the model's files, which loading has
// brought into the page cache.
double PageCacheRate(const model::Checkpoint& checkpoint, ThreadPool* pool) {
  constexpr int64_t kPiece = int64_t{4} << 20;
  constexpr int64_t kBytesMax = int64_t{4} << 30;
  std::vector<std::unique_ptr<char[]>> buffers;
  for (int i = 0; i < pool->threads(); ++i)
    buffers.push_back(std::make_unique<char[]>(kPiece));
  std::atomic<int64_t> bytes{0};
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& file : checkpoint.files()) {
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    const int64_t size = std::min<int64_t>(lseek(fd, 0, SEEK_END), kBytesMax);
    pool->ParallelFor((size + kPiece - 1) / kPiece, [&](int64_t p, int thread) {
      const ssize_t read = pread(
          fd, buffers[static_cast<size_t>(thread)].get(),
          static_cast<size_t>(std::min(kPiece, size - p * kPiece)), p * kPiece);
      if (read > 0) bytes += read;
    });
    close(fd);
    if (bytes >= kBytesMax) break;
  }
  return static_cast<double>(bytes.load()) / SecondsSince(begin);
}

std::vector<StepCase> CasesOf(const BenchFlags& flags) {
  std::vector<StepCase> cases;
  for (const int64_t context : flags.contexts) {
    for (const int64_t streams : flags.streams)
      cases.push_back({false, streams, context});
  }
  for (const int64_t tokens : flags.prefill) cases.push_back({true, tokens, 0});
  return cases;
}

class Bench {
 public:
  explicit Bench(const BenchFlags& flags) : flags_(flags) {}

  absl::Status Run() {
    TL_RETURN_IF_ERROR(InitLogging("bench", "bench", "warn"));
    TL_RETURN_IF_ERROR(kernels::SelectTarget(flags_.simd));
    TL_ASSIGN_OR_RETURN(numerics_,
                        NumericsForModel(flags_.numerics, flags_.model));
    TL_RETURN_IF_ERROR(StartCluster());
    pool_ = std::make_unique<ThreadPool>(
        ComputeThreads(flags_.threads, flags_.cores));
    pool_->AdoptCaller();
    TL_RETURN_IF_ERROR(Load());
    TL_RETURN_IF_ERROR(MeasureSteps());
    Describe();
    return Print();
  }

 private:
  absl::Status StartCluster() {
    if (flags_.experts == 0) return absl::OkStatus();
    UpFlags up;
    up.model = flags_.model;
    up.experts = flags_.experts;
    up.simd = flags_.simd;
    up.numerics = kernels::NumericsName(numerics_);
    up.cores = flags_.cores;
    up.no_metrics = true;
    up.log_level = "warn";
    TL_ASSIGN_OR_RETURN(
        cluster_,
        BenchCluster::Start(up, static_cast<int>(std::max(
                                    1u, std::thread::hardware_concurrency()))));
    return absl::OkStatus();
  }

  absl::Status Load() {
    line_.Draw("loading");
    const kernels::KernelContext context{pool_.get(), numerics_};
    const int64_t before = StatusBytes("VmRSS");
    const auto begin = std::chrono::steady_clock::now();
    TL_ASSIGN_OR_RETURN(checkpoint_, model::Checkpoint::Open(flags_.model));
    TL_ASSIGN_OR_RETURN(weights_,
                        trunk::TrunkWeights::Load(*checkpoint_, context, {}));
    report_.weight_bytes = weights_.bytes();
    if (cluster_ == nullptr) {
      TL_ASSIGN_OR_RETURN(local_,
                          trunk::LocalExperts::Load(*checkpoint_, context));
      report_.weight_bytes += local_->bytes();
    }
    report_.load_seconds = SecondsSince(begin);
    report_.resident_bytes = StatusBytes("VmRSS") - before;
    report_.resident_peak_bytes = StatusBytes("VmHWM") - before;
    report_.page_cache_rate = PageCacheRate(*checkpoint_, pool_.get());
    experts_ = local_.get();
    if (cluster_ == nullptr) return absl::OkStatus();
    line_.Draw("waiting for the expert workers");
    TL_ASSIGN_OR_RETURN(
        experts_, cluster_->Join(*checkpoint_, context, absl::Minutes(10)));
    TL_ASSIGN_OR_RETURN(report_.ping_pong_seconds,
                        PingPongSeconds("ucx", 2000));
    return absl::OkStatus();
  }

  absl::Status MeasureSteps() {
    StepBench::Options options;
    options.rows_per_step = flags_.rows_per_step;
    options.repeats = flags_.repeats;
    options.seconds_per_repeat = flags_.seconds;
    options.cases = CasesOf(flags_);
    TL_ASSIGN_OR_RETURN(const std::unique_ptr<StepBench> bench,
                        StepBench::Create({checkpoint_.get(), &weights_,
                                           experts_, pool_.get(), numerics_},
                                          options));
    MeasureLimits(bench.get());
    for (const StepCase& what : options.cases) {
      line_.Draw(what.Name());
      if (!what.prefill && what.rows > flags_.rows_per_step) {
        report_.skipped.push_back(
            absl::StrCat(what.Name(), ": more rows than --rows-per-step ",
                         flags_.rows_per_step));
        continue;
      }
      TL_ASSIGN_OR_RETURN(StepFigures figures, bench->Measure(what));
      report_.steps.push_back(std::move(figures));
    }
    line_.Clear();
    return absl::OkStatus();
  }

  void MeasureLimits(StepBench* bench) {
    line_.Draw("limits");
    constexpr int kRepeats = 5;
    ThreadPool alone{ThreadPool::Options{}};
    for (int i = 0; i < kRepeats; ++i) {
      report_.read_one_thread =
          std::max(report_.read_one_thread, bench->ReadLimit(&alone));
      report_.read_all_threads =
          std::max(report_.read_all_threads, bench->ReadLimit(pool_.get()));
    }
    report_.fresh_memory_rate = bench->fresh_memory_rate();
    report_.fma_one_thread = kernels::FmaPeak(alone, kRepeats);
    report_.fma_all_threads = kernels::FmaPeak(*pool_, kRepeats);
    report_.dot_one_thread = kernels::Bf16DotPeak(alone, kRepeats);
    report_.dot_all_threads = kernels::Bf16DotPeak(*pool_, kRepeats);
    report_.cache_copy = kernels::CacheCopy(kRepeats);
    report_.fork_join_seconds = kernels::ForkJoinSeconds(*pool_, 1001);
  }

  void Describe() {
    report_.model = flags_.model;
    report_.layers = checkpoint_->config().LayerPattern();
    report_.simd = kernels::ActiveTarget();
    report_.numerics = numerics_;
    report_.threads = pool_->threads();
    report_.expert_workers = flags_.experts;
    report_.repeats = flags_.repeats;
  }

  absl::Status Print() const {
    const std::string json = BenchJson(report_).dump(2) + "\n";
    std::fputs(flags_.as_json ? json.c_str() : BenchText(report_).c_str(),
               stdout);
    if (flags_.json_file.empty()) return absl::OkStatus();
    std::ofstream file(flags_.json_file, std::ios::trunc);
    file << json;
    file.close();
    if (file.good()) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("--json-file ", flags_.json_file, ": can not write"));
  }

  const BenchFlags flags_;
  kernels::Numerics numerics_ = kernels::Numerics::kPortable;
  BenchReport report_;
  StatusLine line_;
  // Destroyed from the last to the first: the cluster's link uses the pool.
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<BenchCluster> cluster_;
  std::shared_ptr<const model::Checkpoint> checkpoint_;
  trunk::TrunkWeights weights_;
  std::unique_ptr<trunk::LocalExperts> local_;
  trunk::ExpertExchange* experts_ = nullptr;
};

void AddWhatFlags(CLI::App* command, BenchFlags* f) {
  command->add_option("--model", f->model, "Hugging Face checkpoint directory")
      ->type_name("DIR")
      ->required();
  const auto add_list = [command](const char* name, std::vector<int64_t>* list,
                                  int64_t least, const char* help) {
    command->add_option(name, *list, help)
        ->type_name("N,...")
        ->delimiter(',')
        ->capture_default_str()
        ->expected(0, 64)
        ->check(CLI::Range(least, int64_t{1} << 24));
  };
  add_list("--streams", &f->streams, 1, "Decode: sequences in one step");
  add_list("--contexts", &f->contexts, 0,
           "Decode: positions before the measured token");
  add_list("--prefill", &f->prefill, 1, "Tokens of one prompt");
  command
      ->add_option("--experts", f->experts,
                   "Expert workers as processes on this machine, this process "
                   "as their trunk; 0: experts in this process")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command
      ->add_option("--rows-per-step", f->rows_per_step,
                   "A longer prompt takes several steps")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
}

void AddHowFlags(CLI::App* command, BenchFlags* f) {
  command->add_option("--repeats", f->repeats, "Each figure is their median")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_option("--seconds", f->seconds, "Of decode steps in one repeat")
      ->type_name("S")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  command->add_flag("--json", f->as_json,
                    "One JSON object instead of the tables; bench/compare puts "
                    "two of them side by side");
  command->add_option("--json-file", f->json_file, "Writes the JSON there too")
      ->type_name("FILE");
}

}  // namespace

void AddBenchCommand(CLI::App* program, SelectedCommand* selected) {
  CLI::App* command = program->add_subcommand(
      "bench", "Measure steps of a model against this machine's limits");
  command->footer(
      "Each repeat measures the limit around the steps, so that the ratio "
      "holds on a machine that drifts.\n"
      "Examples:\n"
      "  trunkline synthesize --shape nano --layers 'MEM*E' --vocab 8192 "
      "/tmp/nano-slice\n"
      "  trunkline bench --model /tmp/nano-slice\n"
      "  trunkline bench --model /tmp/nano-slice --numerics bf16dot --streams "
      "1 --contexts 0\n"
      "  trunkline bench --model /tmp/nano-slice --experts 2 --contexts 0 "
      "--json > b.json");
  auto flags = std::make_shared<BenchFlags>();
  AddWhatFlags(command, flags.get());
  AddComputeFlags(command, &flags->threads, &flags->cores, &flags->simd);
  AddNumericsFlag(command, &flags->numerics,
                  "Numerics class; auto: the fastest of this machine for this "
                  "model");
  AddHowFlags(command, flags.get());
  command->callback([selected, flags] {
    *selected = [flags]() -> int {
      const absl::Status status = Bench(*flags).Run();
      return status.ok() ? kExitOk : ReportFailure("bench", status);
    };
  });
}

}  // namespace trunkline::cli
