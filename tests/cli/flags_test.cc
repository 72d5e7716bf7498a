#include "cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace trunkline::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Flags, DurationsNeedAUnitAndAreNotNegative) {
  EXPECT_EQ(*ParseDurationText("1m30s"), absl::Seconds(90));
  EXPECT_EQ(*ParseDurationText("250ms"), absl::Milliseconds(250));
  EXPECT_EQ(*ParseDurationText("0"), absl::ZeroDuration());
  for (const std::string text : {"", "30", "abc", "-1s", "1 s", "-inf"}) {
    const auto parsed = ParseDurationText(text);
    EXPECT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()),
                HasSubstr("\"" + text + "\""));
  }
}

TEST(Flags, SizesAreInPowersOf1024) {
  EXPECT_EQ(*ParseBytesText("0"), 0);
  EXPECT_EQ(*ParseBytesText("4096"), 4096);
  EXPECT_EQ(*ParseBytesText("4096b"), 4096);
  for (const char* text : {"64k", "64K", "64kb", "64KiB"}) {
    EXPECT_EQ(*ParseBytesText(text), 64 << 10) << text;
  }
  EXPECT_EQ(*ParseBytesText("1.5G"), (int64_t{3} << 30) / 2);
  EXPECT_EQ(*ParseBytesText("2TiB"), int64_t{2} << 40);
  EXPECT_EQ(*ParseBytesText("1.50 KiB"), 1536);  // as sizes are printed
  for (const std::string text :
       {"", "G", "-1", "1X", "nan", "inf", "5000P", "1GiBB", "1e30"}) {
    const auto parsed = ParseBytesText(text);
    EXPECT_FALSE(parsed.ok()) << text << " gave " << *parsed;
    EXPECT_THAT(std::string(parsed.status().message()),
                HasSubstr("\"" + text + "\""));
  }
}

TEST(Flags, CpuListsAreRangesAndSingles) {
  EXPECT_THAT(*ParseCpuList("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(*ParseCpuList("5"), ElementsAre(5));
  for (const std::string text :
       {"", "a", "3-1", "1-2-3", "0,0", "0-2,1", "-1", "1,", "99999999"}) {
    EXPECT_FALSE(ParseCpuList(text).ok()) << text;
  }
}

TEST(Flags, AddressesNeedHostAndPort) {
  EXPECT_TRUE(CheckAddress("127.0.0.1:80", Port::kDialable).ok());
  EXPECT_TRUE(CheckAddress("[::1]:80", Port::kDialable).ok());
  EXPECT_TRUE(CheckAddress("host:0", Port::kAny).ok());
  for (const std::string text : {"", "host", ":80", "host:", "host:65536",
                                 "host:-1", "host:x", "host:0"}) {
    const absl::Status status = CheckAddress(text, Port::kDialable);
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + text + "\""));
  }
}

// What a person gets to read on a bad value.
std::string ErrorOf(const std::function<void(CLI::App*)>& add,
                    const std::string& flag, const std::string& value) {
  CLI::App app;
  add(&app);
  try {
    app.parse(std::vector<std::string>{value, flag});  // last one first
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(Flags, ABadValueIsNamedWithItsFlag) {
  absl::Duration duration;
  const std::string message = ErrorOf(
      [&](CLI::App* app) { AddDurationFlag(app, "--wait", &duration, ""); },
      "--wait", "soon");
  EXPECT_THAT(message, HasSubstr("--wait"));
  EXPECT_THAT(message, HasSubstr("\"soon\""));
  EXPECT_EQ(
      ErrorOf(
          [&](CLI::App* app) { AddDurationFlag(app, "--wait", &duration, ""); },
          "--wait", "3s"),
      "");
  EXPECT_EQ(duration, absl::Seconds(3));
}

TEST(Flags, FiniteNumbersStayInTheirRange) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto error = [](const FloatRange& range, const std::string& value) {
    double number = 0;
    return ErrorOf(
        [&](CLI::App* app) {
          app->add_option("--x", number)->check(FiniteIn(range));
        },
        "--x", value);
  };
  EXPECT_EQ(error({0, kInfinity}, "0"), "");
  EXPECT_EQ(error({0, kInfinity}, "1e30"), "");
  EXPECT_EQ(error({0, 1, true}, "1"), "");
  EXPECT_EQ(error({0, 1, false, true}, "0"), "");
  for (const std::string value : {"-0.1", "nan", "inf", "x", ""}) {
    EXPECT_THAT(error({0, kInfinity}, value), HasSubstr("--x")) << value;
  }
  EXPECT_THAT(error({0, 1, true}, "0"), HasSubstr("(0, 1]"));
  EXPECT_THAT(error({0, 1, false, true}, "1"), HasSubstr("[0, 1)"));
}

}  // namespace
}  // namespace trunkline::cli
