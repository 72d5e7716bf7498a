// House rules that a reader would otherwise have to police by eye.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>

#include "tests/tidy/source_tree.h"

namespace trunkline::tidy {
namespace {

TEST(SourceRules, FilesStayUnderFiveHundredLines) {
  // A file that has to be longer says here why.
  const std::map<std::string, std::string> longer = {};
  for (const SourceFile& file : ReadSources()) {
    if (longer.contains(file.path)) continue;
    EXPECT_LE(file.lines.size(), 500u)
        << file.path << ": split it by what its parts decide";
  }
}

TEST(SourceRules, NoFileIsNamedAfterNothing) {
  const std::regex bad("(^|/|_)(utils?|helpers?|misc)(_|\\.|/)");
  for (const SourceFile& file : ReadSources()) {
    EXPECT_FALSE(std::regex_search(file.path, bad))
        << file.path << ": name what the functions share";
  }
}

TEST(SourceRules, HeadersArePragmaOnce) {
  for (const SourceFile& file : ReadSources()) {
    // Highway includes an -inl.h once for every target, so it is guarded by a
    // toggle instead.
    if (!file.path.ends_with(".h") || file.path.ends_with("-inl.h")) continue;
    bool once = false;
    for (const std::string& line : file.lines)
      once = once || line == "#pragma once";
    EXPECT_TRUE(once) << file.path;
  }
}

TEST(SourceRules, TestsWaitForConditionsNotForTime) {
  const std::regex sleeps(
      "\\b(sleep_for|sleep_until|usleep|nanosleep|SleepFor)\\b");
  // Where time itself is what the test is about, it says so here.
  const std::map<std::string, std::string> about_time = {
      {"tests/coordinator/store_sqlite_test.cc",
       "the moment of the kill is the random input"},
  };
  for (const SourceFile& file : ReadSources()) {
    if (file.folder != "tests" || file.path.find("tests/tidy/") == 0) continue;
    if (about_time.contains(file.path)) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file.lines[i], sleeps))
          << file.path << ":" << i + 1 << ": " << file.lines[i];
    }
  }
}

TEST(SourceRules, NothingUnfinishedIsLeftInTheCode) {
  const std::regex unfinished("\\b(TODO|FIXME|XXX|HACK)\\b");
  for (const SourceFile& file : ReadSources()) {
    if (file.path.find("tests/tidy/") == 0) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file.lines[i], unfinished))
          << file.path << ":" << i + 1 << ": " << file.lines[i];
    }
  }
}

TEST(SourceRules, OnlyMainReadsTheEnvironmentAndEndsTheProcess) {
  const std::regex calls("\\b(std::)?(getenv|exit|_exit|quick_exit)\\(");
  for (const SourceFile& file : ReadSources()) {
    if (file.folder == "tests" || file.folder == "bench" ||
        file.folder == "cli" || file.folder == "sim")
      continue;
    // The UCX backend asks whether the operator has set a UCX_ variable before
    // it sets the same option.
    if (file.path.rfind("transport/ucx/", 0) == 0) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string code =
          file.lines[i].substr(0, file.lines[i].find("//"));
      EXPECT_FALSE(std::regex_search(code, calls))
          << file.path << ":" << i + 1 << ": " << file.lines[i];
    }
  }
}

TEST(SourceRules, EveryMetricIsDocumented) {
  std::ifstream in(std::string(TRUNKLINE_SOURCE_DIR) + "/docs/metrics.md");
  const std::string documented{std::istreambuf_iterator<char>(in), {}};
  ASSERT_FALSE(documented.empty());
  const std::regex name("\"(trunkline_[a-z_]+)\"");
  int found = 0;
  for (const SourceFile& file : ReadSources()) {
    if (!file.path.ends_with("_metrics.cc")) continue;
    for (const std::string& line : file.lines) {
      std::smatch match;
      if (!std::regex_search(line, match, name)) continue;
      ++found;
      EXPECT_NE(documented.find("`" + match[1].str() + "`"), std::string::npos)
          << file.path << ": " << match[1] << " is not in docs/metrics.md";
    }
  }
  EXPECT_GT(found, 30);
}

TEST(SourceRules, DocumentsNameFilesThatExist) {
  namespace fs = std::filesystem;
  const fs::path root(TRUNKLINE_SOURCE_DIR);
  const std::regex named(
      "`([a-z_]+)(/[A-Za-z0-9_./-]+\\.(h|cc|proto|py|json))`");
  int found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() != ".md") continue;
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    for (std::sregex_iterator at(text.begin(), text.end(), named), end;
         at != end; ++at) {
      // Only paths from the root; others are somebody's own.
      if (!fs::is_directory(root / (*at)[1].str())) continue;
      ++found;
      EXPECT_TRUE(fs::exists(root / ((*at)[1].str() + (*at)[2].str())))
          << entry.path() << ": " << (*at)[0];
    }
  }
  EXPECT_GT(found, 20);
}

}  // namespace
}  // namespace trunkline::tidy
