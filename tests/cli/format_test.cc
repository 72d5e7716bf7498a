#include "cli/format.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace trunkline::cli {
namespace {

TEST(Format, BytesHaveThreeDigitsAndTheUnitThatFits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanBytes(10 * 1024 * 1024), "10.0 MiB");
  EXPECT_EQ(HumanBytes(int64_t{1023} << 20), "1023 MiB");
  EXPECT_EQ(HumanBytes((int64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<int64_t>::max()), "8.00 EiB");
  EXPECT_EQ(HumanBytes(-2048), "-2.00 KiB");
}

TEST(Format, CountsUseThousands) {
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(1000), "1.00 k");
  EXPECT_EQ(HumanCount(999'400), "999 k");
  EXPECT_EQ(HumanCount(999'999), "1.00 M");
  EXPECT_EQ(HumanCount(31'577'000'000), "31.6 B");
}

TEST(Format, DurationsAreShownByTheirSize) {
  EXPECT_EQ(HumanDuration(absl::Milliseconds(12)), "12 ms");
  EXPECT_EQ(HumanDuration(absl::Milliseconds(999)), "999 ms");
  EXPECT_EQ(HumanDuration(absl::Milliseconds(3440)), "3.4 s");
  EXPECT_EQ(HumanDuration(absl::Seconds(59.97)), "1m00s");
  EXPECT_EQ(HumanDuration(absl::Seconds(125)), "2m05s");
  EXPECT_EQ(HumanDuration(absl::Minutes(125)), "2h05m");
}

TEST(Format, ATableAlignsItsColumnsAndTrimsItsLines) {
  Table table({"name", "bytes", "note"},
              {Table::Align::kLeft, Table::Align::kRight, Table::Align::kLeft});
  table.AddRow({"a", "1", ""});
  table.AddRow({"longer", "12345", "x"});
  EXPECT_EQ(table.ToString(),
            "name    bytes  note\n"
            "a           1\n"
            "longer  12345  x\n");
}

TEST(Format, ABarIsFullOnlyWhenEverythingIsDone) {
  EXPECT_EQ(ProgressBar(0, 10, 4, 0), "[....]   0%");
  EXPECT_EQ(ProgressBar(5, 10, 4, 0), "[##..]  50%");
  EXPECT_EQ(ProgressBar(999, 1000, 4, 0), "[###.]  99%");
  EXPECT_EQ(ProgressBar(10, 10, 4, 0), "[####] 100%");
  EXPECT_EQ(ProgressBar(11, 10, 4, 0), "[####] 100%");
}

TEST(Format, ABarWithoutAKnownEndWandersThereAndBack) {
  std::string seen;
  for (int64_t tick = 0; tick < 7; ++tick) {
    seen += ProgressBar(0, 0, 3, tick);
  }
  EXPECT_EQ(seen, "[#..][.#.][..#][.#.][#..][.#.][..#]");
  EXPECT_EQ(ProgressBar(0, 0, 1, 5), "[#]");
}

TEST(Format, ALineIsCutToTheTerminalBetweenCharacters) {
  EXPECT_EQ(FitLine("short", 10), "short");
  EXPECT_EQ(FitLine("exactly ten", 11), "exactly ten");
  EXPECT_EQ(FitLine("longer than ten", 10), "longer ...");
  EXPECT_EQ(FitLine("one\ntwo", 10), "one...");
  EXPECT_EQ(FitLine("abc\xe2\x82\xac long", 8), "abc...");
  EXPECT_EQ(FitLine("abc\xe2\x82\xac long", 9), "abc\xe2\x82\xac...");
  EXPECT_EQ(FitLine("anything", 0), "a...");
}

}  // namespace
}  // namespace trunkline::cli
