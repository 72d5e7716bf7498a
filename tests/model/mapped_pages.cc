#include "tests/model/mapped_pages.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "common/check.h"

namespace trunkline::model {

MappedPages MappedPages::OfFile(const std::string& path) {
  struct stat wanted;
  TL_CHECK(stat(path.c_str(), &wanted) == 0) << path;
  MappedPages pages;
  pages.page_bytes_ = sysconf(_SC_PAGESIZE);
  std::ifstream smaps("/proc/self/smaps");
  TL_CHECK(smaps.good());
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long begin = 0, end = 0, offset = 0, inode = 0;
    char device[32];
    char flags[8];
    long resident_kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %7s %lx %31s %lu", &begin, &end,
                    flags, &offset, device, &inode) == 6) {
      ours = inode == wanted.st_ino &&
             line.find(path.substr(path.rfind('/'))) != std::string::npos;
      if (!ours) continue;
      pages.ranges_.push_back({static_cast<int64_t>(offset),
                               static_cast<int64_t>(offset + (end - begin))});
    } else if (ours &&
               std::sscanf(line.c_str(), "Rss: %ld kB", &resident_kib) == 1) {
      pages.resident_bytes_ += resident_kib * 1024;
    }
  }
  return pages;
}

int64_t MappedPages::bytes() const {
  int64_t sum = 0;
  for (const Range& range : ranges_) sum += range.end - range.begin;
  return sum;
}

int64_t MappedPages::BytesIn(int64_t offset, int64_t bytes) const {
  int64_t sum = 0;
  for (const Range& range : ranges_) {
    sum += std::max<int64_t>(
        0, std::min(range.end, offset + bytes) - std::max(range.begin, offset));
  }
  return sum;
}

int64_t MappedPages::WholePagesIn(int64_t offset, int64_t bytes) const {
  const int64_t first = (offset + page_bytes_ - 1) / page_bytes_ * page_bytes_;
  const int64_t last = (offset + bytes) / page_bytes_ * page_bytes_;
  return last <= first ? 0 : BytesIn(first, last - first) / page_bytes_;
}

}  // namespace trunkline::model
