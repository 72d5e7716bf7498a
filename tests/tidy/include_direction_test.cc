// Who may include whom: the table of docs/architecture.md, "Dependency
// direction".

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "tests/tidy/source_tree.h"

namespace trunkline::tidy {
namespace {

using Allowed = std::map<std::string, std::set<std::string>>;

const Allowed& AllowedFolders() {
  static const std::set<std::string> worker = {
      "common",   "model",     "kernels", "routing", "placement",
      "dispatch", "transport", "control", "proto"};
  static const Allowed table = {
      {"common", {}},
      {"model", {"common"}},
      {"kernels", {"common"}},
      {"transport", {"common"}},
      {"placement", {"common"}},
      {"routing", {"common"}},
      {"dispatch", {"common", "routing", "placement"}},
      {"control", {"common", "proto", "placement"}},
      {"coordinator", {"common", "proto", "control", "placement"}},
      {"trunk_worker", worker},
      {"expert_worker", worker},
  };
  return table;
}

const std::set<std::string>& OurFolders() {
  static const std::set<std::string> folders = {
      "common",    "model",       "kernels",      "routing",
      "placement", "dispatch",    "transport",    "control",
      "proto",     "coordinator", "trunk_worker", "expert_worker",
      "cli",       "sim",         "bench",        "tests"};
  return folders;
}

std::string FolderOf(const std::string& header) {
  return header.substr(0, header.find('/'));
}

TEST(IncludeDirection, NoFolderIncludesAboveItsPlace) {
  for (const SourceFile& file : ReadSources()) {
    const auto allowed = AllowedFolders().find(file.folder);
    for (const Include& include : IncludesOf(file)) {
      const std::string folder = FolderOf(include.header);
      if (include.header.find('/') == std::string::npos ||
          !OurFolders().contains(folder))
        continue;
      if (folder == file.folder) continue;
      if (allowed != AllowedFolders().end()) {
        EXPECT_TRUE(allowed->second.contains(folder))
            << file.path << ":" << include.line << " includes "
            << include.header << ", but " << file.folder << "/ must not see "
            << folder << "/";
      }
      if (file.folder != "tests" && file.folder != "bench" &&
          file.folder != "sim") {
        EXPECT_TRUE(folder != "tests" && folder != "bench" && folder != "sim")
            << file.path << ":" << include.line << " includes "
            << include.header;
      }
    }
  }
}

TEST(IncludeDirection, LinkListsFollowTheSameTable) {
  for (const SourceFile& file : ReadBuildFiles()) {
    const auto allowed = AllowedFolders().find(file.folder);
    if (allowed == AllowedFolders().end()) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      for (size_t at = line.find("trunkline_"); at != std::string::npos;
           at = line.find("trunkline_", at + 1)) {
        size_t end = at + 10;
        while (end < line.size() &&
               (isalnum(line[end]) != 0 || line[end] == '_'))
          ++end;
        const std::string target = line.substr(at + 10, end - at - 10);
        if (!OurFolders().contains(target) || target == file.folder) continue;
        EXPECT_TRUE(allowed->second.contains(target))
            << file.path << ":" << i + 1 << " links trunkline_" << target
            << ", but " << file.folder << "/ must not see it";
      }
    }
  }
}

// Third-party headers stay where the architecture puts them, so that a backend
// can be left out and a core can be simulated.
TEST(IncludeDirection, ThirdPartyHeadersStayInTheirFolders) {
  struct Rule {
    const char* prefix;
    std::set<std::string> places;  // path prefixes that may include it
  };
  const std::vector<Rule> rules = {
      {"ucp/", {"transport/ucx/", "tests/transport/", "bench/"}},
      {"ucs/", {"transport/ucx/", "tests/transport/", "bench/"}},
      {"hwy/", {"kernels/", "tests/kernels/", "bench/"}},
      {"pcre2.h", {"model/"}},
      {"sqlite3.h", {"coordinator/", "tests/coordinator/"}},
      {"CLI/", {"cli/", "sim/"}},
      {"grpcpp/",
       {"control/", "coordinator/", "trunk_worker/", "expert_worker/", "cli/",
        "tests/", "bench/"}},
      {"prometheus/",
       {"common/", "coordinator/", "trunk_worker/", "expert_worker/", "sim/",
        "tests/"}},
      {"hwloc.h", {"common/"}},
      {"nccl.h", {"transport/nccl/"}},
      {"cuda", {"kernels/", "transport/nccl/"}},
  };
  for (const SourceFile& file : ReadSources()) {
    for (const Include& include : IncludesOf(file)) {
      for (const Rule& rule : rules) {
        if (include.header.rfind(rule.prefix, 0) != 0) continue;
        bool allowed = false;
        for (const std::string& place : rule.places)
          allowed = allowed || file.path.rfind(place, 0) == 0;
        EXPECT_TRUE(allowed) << file.path << ":" << include.line << " includes "
                             << include.header;
      }
    }
  }
}

// Pure folders decide; they have no clock, thread, socket, file or log.
TEST(IncludeDirection, PureFoldersSeeNoOperatingSystem) {
  const std::set<std::string> pure = {"routing", "placement", "dispatch"};
  const std::set<std::string> banned = {
      "thread",          "mutex",      "condition_variable",
      "fstream",         "filesystem", "future",
      "unistd.h",        "time.h",     "sys/socket.h",
      "common/log.h",    "chrono",     "common/thread_pool.h",
      "spdlog/spdlog.h", "iostream"};
  for (const SourceFile& file : ReadSources()) {
    if (!pure.contains(file.folder)) continue;
    for (const Include& include : IncludesOf(file)) {
      EXPECT_FALSE(banned.contains(include.header))
          << file.path << ":" << include.line << " includes " << include.header;
    }
  }
}

TEST(IncludeDirection, TheTableItselfSeesTheTree) {
  // A wrong root would make every test above pass over nothing.
  std::set<std::string> folders;
  for (const SourceFile& file : ReadSources()) folders.insert(file.folder);
  for (const auto& [folder, unused] : AllowedFolders())
    EXPECT_TRUE(folders.contains(folder)) << folder;
}

}  // namespace
}  // namespace trunkline::tidy
