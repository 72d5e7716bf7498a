#include "common/huge_region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "common/check.h"

namespace trunkline {
namespace {

// Address space of one region; it costs nothing until it is written.
constexpr size_t kRegionBytes = size_t{1} << 30;

size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

size_t PageBytes() {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

// A region's addresses are used once, front to back.
struct Region {
  size_t bytes = 0;
  size_t cut = 0;     // from the front
  size_t in_use = 0;  // of what was cut
};

// By address. Never destroyed: buffers may outlive static objects.
struct Regions {
  std::mutex mutex;
  std::map<std::byte*, Region> by_begin;
  std::byte* open = nullptr;  // the one that is being cut
};
Regions& AllRegions() {
  static auto* regions = new Regions;
  return *regions;
}

// Mapped and advised, on a huge page boundary.
std::byte* MapRegion(size_t bytes) {
  // One huge page more, so that an aligned start can be cut out of the mapping.
  const size_t reserve = bytes + kHugePageBytes;
  void* raw = mmap(nullptr, reserve, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TL_CHECK(raw != MAP_FAILED)
      << "out of address space for " << bytes << " bytes";
  auto* begin = static_cast<std::byte*>(raw);
  auto* aligned = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePageBytes));
  if (aligned != begin) munmap(begin, static_cast<size_t>(aligned - begin));
  std::byte* end = begin + reserve;
  if (aligned + bytes != end)
    munmap(aligned + bytes, static_cast<size_t>(end - (aligned + bytes)));
  // Advice only: without huge pages it is slower, not wrong.
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

// Unmaps a region of which nothing is in use, unless it is still being cut.
void ReleaseIfEmpty(Regions& regions,
                    std::map<std::byte*, Region>::iterator region) {
  if (region->second.in_use != 0 || region->first == regions.open) return;
  munmap(region->first, region->second.bytes);
  regions.by_begin.erase(region);
}

}  // namespace

std::byte* AllocateHuge(size_t bytes) {
  const size_t needed = RoundUp(bytes, PageBytes());
  Regions& regions = AllRegions();
  const std::lock_guard<std::mutex> lock(regions.mutex);
  auto region = regions.by_begin.find(regions.open);
  if (region == regions.by_begin.end() ||
      region->second.bytes - region->second.cut < needed) {
    const auto full = region;
    const size_t size = std::max(kRegionBytes, RoundUp(needed, kHugePageBytes));
    regions.open = MapRegion(size);
    region = regions.by_begin.emplace(regions.open, Region{size, 0, 0}).first;
    if (full != regions.by_begin.end()) ReleaseIfEmpty(regions, full);
  }
  std::byte* data = region->first + region->second.cut;
  region->second.cut += needed;
  region->second.in_use += needed;
  return data;
}

void FreeHuge(std::byte* data, size_t bytes) {
  const size_t mapped = RoundUp(bytes, PageBytes());
  madvise(data, mapped, MADV_DONTNEED);
  Regions& regions = AllRegions();
  const std::lock_guard<std::mutex> lock(regions.mutex);
  auto region = std::prev(regions.by_begin.upper_bound(data));
  TL_CHECK(data >= region->first &&
           data + mapped <= region->first + region->second.cut);
  region->second.in_use -= mapped;
  ReleaseIfEmpty(regions, region);
}

}  // namespace trunkline
