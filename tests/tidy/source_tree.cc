#include "tests/tidy/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

namespace trunkline::tidy {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolders[] = {
    "common",        "model",     "kernels", "routing",     "placement",
    "dispatch",      "transport", "control", "coordinator", "trunk_worker",
    "expert_worker", "cli",       "sim",     "bench",       "tests"};

std::vector<SourceFile> Read(
    const std::function<bool(const fs::path&)>& wanted) {
  std::vector<SourceFile> files;
  const fs::path root(TRUNKLINE_SOURCE_DIR);
  for (const char* folder : kFolders) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !wanted(entry.path())) continue;
      SourceFile file;
      file.path = fs::relative(entry.path(), root).generic_string();
      file.folder = folder;
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);)
        file.lines.push_back(line);
      files.push_back(std::move(file));
    }
  }
  std::sort(
      files.begin(), files.end(),
      [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::vector<SourceFile> ReadSources() {
  return Read([](const fs::path& p) {
    return p.extension() == ".h" || p.extension() == ".cc";
  });
}

std::vector<SourceFile> ReadBuildFiles() {
  return Read([](const fs::path& p) {
    return p.filename() == "CMakeLists.txt" || p.extension() == ".cmake";
  });
}

std::vector<Include> IncludesOf(const SourceFile& file) {
  std::vector<Include> includes;
  for (size_t i = 0; i < file.lines.size(); ++i) {
    const std::string& line = file.lines[i];
    const size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const size_t word = line.find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || line.compare(word, 7, "include") != 0)
      continue;
    const size_t open = line.find_first_of("\"<", word + 7);
    if (open == std::string::npos) continue;
    const bool angled = line[open] == '<';
    const size_t close = line.find(angled ? '>' : '"', open + 1);
    if (close == std::string::npos) continue;
    includes.push_back({static_cast<int>(i + 1),
                        line.substr(open + 1, close - open - 1), angled});
  }
  return includes;
}

}  // namespace trunkline::tidy
