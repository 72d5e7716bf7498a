#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/safetensors_file.h"
#include "tests/model/checkpoint_builder.h"

namespace trunkline::model {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<SafetensorsHeader> Parse(const std::string& bytes) {
  return ParseSafetensorsHeader(bytes, static_cast<int64_t>(bytes.size()),
                                "m.safetensors");
}

TEST(SafetensorsHeader, ListsTensorsByOffset) {
  const auto header = Parse(SafetensorsBytes(
      R"({"__metadata__": {"format": "pt"},
          "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [4, 16]},
          "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
          "empty": {"dtype": "F32", "shape": [0, 4611686018427387904, 9],
                    "data_offsets": [4, 4]}})",
      std::string(16, 'x')));
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].bytes, 4);
  EXPECT_EQ(header->tensors[1].name, "empty");
  EXPECT_EQ(header->tensors[2].name, "b");
  EXPECT_EQ(header->tensors[2].offset, header->data_offset + 4);
  EXPECT_EQ(header->tensors[2].shape, (std::vector<int64_t>{2, 3}));
}

TEST(SafetensorsHeader, TakesPaddingAfterTheObject) {
  EXPECT_TRUE(Parse(SafetensorsBytes("{}      ", "")).ok());
}

struct BadHeader {
  const char* name;
  std::string bytes;
  std::vector<std::string> says;
};

// One tensor "t" with these fields, and `data` bytes behind.
std::string One(const std::string& fields, size_t data) {
  return SafetensorsBytes("{\"t\": {" + fields + "}}", std::string(data, 'x'));
}
std::string Two(const std::string& a, const std::string& b, size_t data) {
  return SafetensorsBytes(
      R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": )" + a +
          R"(}, "b": {"dtype": "F32", "shape": [2], "data_offsets": )" + b +
          "}}",
      std::string(data, 'x'));
}

std::vector<BadHeader> BadHeaders() {
  std::string lying = SafetensorsBytes("{}", "");
  lying[0] = 100;
  std::string huge = SafetensorsBytes("{}", "");
  huge[7] = '\x7f';
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  return {
      {"Empty", "", {"truncated: 0 bytes"}},
      {"ShortLength", "1234567", {"truncated: 7 bytes"}},
      {"LengthBeyondTheFile", lying, {"claims 100 bytes, but only 2 follow"}},
      {"LengthBeyondTheFormat", huge, {"more than the format's limit"}},
      {"ZeroLength", std::string(8, '\0'), {"not a JSON object"}},
      {"Array", SafetensorsBytes("[1]", ""), {"not a JSON object"}},
      {"LeadingBlank", SafetensorsBytes(" {}", ""), {"not a JSON object"}},
      {"NoJson",
       SafetensorsBytes("{nonsense", ""),
       {"(header):1:", "not JSON"}},
      {"Deep", SafetensorsBytes(deep, ""), {"nested more than 8 levels"}},
      {"Metadata",
       SafetensorsBytes(R"({"__metadata__": 4})", ""),
       {"__metadata__ is not an object"}},
      {"DuplicateTensor",
       SafetensorsBytes(
           R"({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
               "t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
           "abcd"),
       {"the name \"t\" is given twice"}},
      {"EntryNoObject",
       SafetensorsBytes(R"({"t": 3})", ""),
       {"tensor t", "the entry is 3"}},
      {"NoDtype",
       One(R"("shape": [1], "data_offsets": [0, 4])", 4),
       {"tensor t", "dtype is missing"}},
      {"NoShape",
       One(R"("dtype": "F32", "data_offsets": [0, 4])", 4),
       {"tensor t", "shape is missing"}},
      {"NoOffsets",
       One(R"("dtype": "F32", "shape": [1])", 4),
       {"tensor t", "data_offsets is missing"}},
      {"UnknownEntryField",
       One(R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4], "x": 1)",
           4),
       {"tensor t", "unknown field x"}},
      {"UnknownDtype",
       One(R"("dtype": "F33", "shape": [1], "data_offsets": [0, 4])", 4),
       {"tensor t", "unknown dtype \"F33\""}},
      {"DtypeNoString",
       One(R"("dtype": 32, "shape": [1], "data_offsets": [0, 4])", 4),
       {"tensor t", "dtype is 32"}},
      {"NegativeSize",
       One(R"("dtype": "F32", "shape": [-1], "data_offsets": [0, 4])", 4),
       {"tensor t", "holds -1"}},
      {"SizeAboveInt64",
       One(R"("dtype": "F32", "shape": [9223372036854775808],
              "data_offsets": [0, 4])",
           4),
       {"tensor t", "holds 9223372036854775808"}},
      {"ShapeOverflows",
       One(R"("dtype": "F32", "shape": [4611686018427387904, 4],
              "data_offsets": [0, 4])",
           4),
       {"tensor t", "larger than any file"}},
      {"ShapeWrapsToTheRightSize",
       One(R"("dtype": "F32", "shape": [4294967296, 4294967296],
              "data_offsets": [0, 0])",
           0),
       {"tensor t", "larger than any file"}},
      {"ShapeNoList",
       One(R"("dtype": "F32", "shape": 1, "data_offsets": [0, 4])", 4),
       {"tensor t", "shape is 1"}},
      {"HalfBytes",
       One(R"("dtype": "F4", "shape": [3], "data_offsets": [0, 1])", 1),
       {"tensor t", "does not fill whole bytes"}},
      {"OffsetsReversed",
       One(R"("dtype": "F32", "shape": [1], "data_offsets": [4, 0])", 4),
       {"tensor t", "data_offsets is [4,0]"}},
      {"OffsetNegative",
       One(R"("dtype": "F32", "shape": [1], "data_offsets": [-4, 0])", 4),
       {"tensor t", "data_offsets is [-4,0]"}},
      {"OneOffset",
       One(R"("dtype": "F32", "shape": [1], "data_offsets": [0])", 4),
       {"tensor t", "data_offsets is [0]"}},
      {"OffsetsBeyondTheFile",
       One(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8])", 4),
       {"tensor t", "end beyond the file", "4 bytes", "truncated"}},
      {"OffsetsAgainstShape",
       One(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 4])", 4),
       {"tensor t", "span 4 bytes", "[2] of F32 takes 8"}},
      {"Overlap",
       Two("[0, 8]", "[4, 12]", 12),
       {"tensor b", "[4, 12) overlap those of a", "end at 8"}},
      {"SameBytesTwice", Two("[0, 8]", "[0, 8]", 8), {"overlap"}},
      {"Gap",
       Two("[0, 8]", "[12, 20]", 20),
       {"tensor b", "the 4 bytes before it belong to no tensor"}},
      {"GapInFront",
       One(R"("dtype": "F32", "shape": [1],
                            "data_offsets": [4, 8])",
           8),
       {"tensor t", "the 4 bytes before it"}},
      {"BytesBehind",
       One(R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4])", 9),
       {"the last 5 bytes belong to no tensor"}},
  };
}

class BadSafetensorsHeader : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadSafetensorsHeader, IsRefusedByName) {
  const absl::Status status = Parse(GetParam().bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("m.safetensors"));
  for (const std::string& text : GetParam().says)
    EXPECT_THAT(status.ToString(), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(Table, BadSafetensorsHeader,
                         ::testing::ValuesIn(BadHeaders()),
                         [](const ::testing::TestParamInfo<BadHeader>& bad) {
                           return std::string(bad.param.name);
                         });

// As many tensors as the largest release holds. A reader that looks through all
// of them for each would run into this test's time limit.
TEST(SafetensorsHeader, AHundredThousandTensorsAreRead) {
  constexpr int kTensors = 165'860;
  std::string json = "{";
  for (int i = 0; i < kTensors; ++i) {
    absl::StrAppend(&json, i == 0 ? "" : ",", "\"t", i,
                    R"(":{"dtype":"U8","shape":[1],"data_offsets":[)", i, ",",
                    i + 1, "]}");
  }
  const auto header =
      Parse(SafetensorsBytes(json + "}", std::string(kTensors, 'x')));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors.size(), size_t{kTensors});
  EXPECT_EQ(header->tensors.back().name, "t165859");
}

// Whatever prefix of a good file is left, it is an error and never a crash.
TEST(SafetensorsHeader, EveryTruncationIsAnError) {
  const std::string bytes = Two("[0, 8]", "[8, 16]", 16);
  ASSERT_TRUE(Parse(bytes).ok());
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(Parse(bytes.substr(0, length)).ok()) << length;
}

}  // namespace
}  // namespace trunkline::model
