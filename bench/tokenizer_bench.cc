// Encoding speed in bytes of text per second: prose, where words repeat; random
// words, where they do not; a run of one letter, the case that a careless
// byte-pair encoder makes quadratic.

#include <benchmark/benchmark.h>

#include <fstream>
#include <iterator>
#include <string>

#include "common/check.h"
#include "common/random.h"
#include "model/tokenizer.h"

namespace trunkline::model {
namespace {

constexpr size_t kTextBytes = 1 << 20;

const Tokenizer& Demo() {
  static const auto demo = [] {
    auto loaded =
        Tokenizer::Load(TRUNKLINE_SOURCE_DIR "/models/demo/tokenizer.json");
    TL_CHECK(loaded.ok()) << loaded.status();
    return *loaded;
  }();
  return *demo;
}

// Words drawn by rank, low ranks more often, as in prose.
std::string Prose() {
  RandomStream random(1);
  std::string text;
  while (text.size() < kTextBytes) {
    const double unit = random.NextUnit();
    RandomStream letters(static_cast<uint64_t>(20000 * unit * unit * unit));
    if (!text.empty()) text += random.NextBelow(12) == 0 ? ".\n" : " ";
    for (uint64_t n = 2 + letters.NextBelow(8); n > 0; --n) {
      text.push_back("etaoinshrdlu"[letters.NextBelow(12)]);
    }
  }
  return text;
}

std::string RandomWords() {
  RandomStream random(2);
  std::string text;
  while (text.size() < kTextBytes) {
    for (uint64_t n = 4 + random.NextBelow(12); n > 0; --n) {
      text.push_back(static_cast<char>('a' + random.NextBelow(26)));
    }
    text += ' ';
  }
  return text;
}

std::string MixedScripts() {
  const std::string unit =
      "The heaven \xe4\xbd\xa0\xe5\xa5\xbd\xe4\xb8\x96\xe7\x95\x8c "
      "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 caf\xc3\xa9 "
      "\xf0\x9f\x98\x80 123\n";
  std::string text;
  while (text.size() < kTextBytes) text += unit;
  return text;
}

void Encode(benchmark::State& state, const std::string& text) {
  size_t tokens = 0;
  for (auto _ : state) {
    const auto ids = Demo().Encode(text, {});
    TL_CHECK(ids.ok()) << ids.status();
    tokens = ids->size();
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(text.size()));
  state.counters["bytes_per_token"] =
      static_cast<double>(text.size()) / static_cast<double>(tokens);
}

void BM_EncodeProse(benchmark::State& state) { Encode(state, Prose()); }
void BM_EncodeRandomWords(benchmark::State& state) {
  Encode(state, RandomWords());
}
void BM_EncodeMixedScripts(benchmark::State& state) {
  Encode(state, MixedScripts());
}
void BM_EncodeRunOfOneLetter(benchmark::State& state) {
  Encode(state, std::string(kTextBytes, 'a'));
}
BENCHMARK(BM_EncodeProse)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeRandomWords)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeMixedScripts)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeRunOfOneLetter)->Unit(benchmark::kMillisecond);

void BM_LoadDemoTokenizer(benchmark::State& state) {
  std::ifstream file(TRUNKLINE_SOURCE_DIR "/models/demo/tokenizer.json");
  const std::string json((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  for (auto _ : state) TL_CHECK(Tokenizer::Parse(json, "demo").ok());
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(json.size()));
}
BENCHMARK(BM_LoadDemoTokenizer)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trunkline::model

BENCHMARK_MAIN();
