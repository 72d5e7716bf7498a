#pragma once

// The sources of the checkout as text, for tests that hold the code to the
// architecture.

#include <string>
#include <vector>

namespace trunkline::tidy {

struct SourceFile {
  std::string path;    // from the root: "dispatch/dispatch_plan.cc"
  std::string folder;  // first component: "dispatch"
  std::vector<std::string> lines;
};

// Every .h and .cc below the architecture's folders, sorted by path.
std::vector<SourceFile> ReadSources();
// Every CMakeLists.txt and .cmake below them.
std::vector<SourceFile> ReadBuildFiles();

struct Include {
  int line = 0;
  std::string header;
  bool angled = false;
};
std::vector<Include> IncludesOf(const SourceFile& file);

}  // namespace trunkline::tidy
