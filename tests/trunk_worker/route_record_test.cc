#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "routing/replay.h"
#include "routing/route_validator.h"
#include "tests/trunk_worker/recorded_stream.h"

namespace trunkline::trunk {
namespace {

using ::testing::HasSubstr;
using Entries = std::vector<v1::RouteRecordEntry>;

// Four steps of two layers; the totals name what is in the file.
TEST(RouteRecordFile, GivesBackEveryBitThatWasWritten) {
  const TestRecording recording = MakeTestRecording(4);
  std::vector<RecordedRoutes> read;
  const auto count = ReadAll(PackEntries(EntriesOf(recording)), &read);
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(*count, 8);
  ASSERT_EQ(read.size(), recording.routes.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(ToProto(read[i]).SerializeAsString(),
              ToProto(recording.routes[i]).SerializeAsString());
    const auto difference =
        routing::FirstDifference(recording.routes[i].record, read[i].record);
    EXPECT_FALSE(difference.has_value()) << *difference;
    EXPECT_TRUE(routing::ProveEqual(read[i].record).ok());
    const absl::Status valid = routing::ValidateLayer(read[i].record);
    EXPECT_TRUE(valid.ok()) << valid;
  }
}

TEST(RouteRecordFile, HeaderAndTrailerComeBackWhole) {
  const TestRecording recording = MakeTestRecording(3);
  auto reader = RouteRecordReader::Read(
      std::make_unique<std::istringstream>(PackEntries(EntriesOf(recording))),
      "r.tlrec");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(ToProto((*reader)->header()).SerializeAsString(),
            ToProto(recording.header).SerializeAsString());
  RecordedRoutes routes;
  while (true) {
    const auto more = (*reader)->Next(&routes);
    ASSERT_TRUE(more.ok()) << more.status();
    if (!*more) break;
  }
  EXPECT_EQ(ToProto((*reader)->trailer()).SerializeAsString(),
            ToProto(recording.trailer).SerializeAsString());
}

// Any cut leaves a file that says so; none is taken for a shorter recording.
TEST(RouteRecordFile, EveryTruncationIsAnError) {
  const std::string bytes = PackEntries(EntriesOf(MakeTestRecording(2)));
  for (size_t length = 0; length < bytes.size();
       length += length < 200 || length > bytes.size() - 200 ? 1 : 97) {
    const auto read = ReadAll(bytes.substr(0, length), nullptr);
    ASSERT_FALSE(read.ok()) << length << " of " << bytes.size();
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss)
        << length << ": " << read.status();
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("r.tlrec"));
  }
}

// A byte of the stream's own description may be free to change; then every
// record is still what it was.
TEST(RouteRecordFile, AFlippedByteIsAnErrorOrChangesNothing) {
  const TestRecording recording = MakeTestRecording(1);
  const std::string bytes = PackEntries(EntriesOf(recording));
  int harmless = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string bad = bytes;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    std::vector<RecordedRoutes> read;
    if (!ReadAll(bad, &read).ok()) continue;
    ++harmless;
    ASSERT_EQ(read.size(), recording.routes.size()) << "byte " << at;
    for (size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(ToProto(read[i]).SerializeAsString(),
                ToProto(recording.routes[i]).SerializeAsString())
          << "byte " << at;
    }
  }
  EXPECT_LT(harmless, static_cast<int>(bytes.size() / 100));
}

TEST(RouteRecordFile, ADirectoryIsNoRecording) {
  const std::string here = std::filesystem::temp_directory_path().string();
  EXPECT_EQ(
      RouteRecordReader::Open(here).status(),
      absl::InvalidArgumentError(here + ": is a directory, not a recording"));
}

TEST(RouteRecordFile, BytesAfterTheEndAreAnError) {
  const std::string bytes = PackEntries(EntriesOf(MakeTestRecording(1)));
  EXPECT_FALSE(ReadAll(bytes + "x", nullptr).ok());
  EXPECT_FALSE(ReadAll(bytes + bytes, nullptr).ok());
  EXPECT_FALSE(ReadAll("no zstd at all", nullptr).ok());
}

TEST(RouteRecordFile, ALengthThatIsNotThereTakesNoMemory) {
  Entries entries = EntriesOf(MakeTestRecording(1));
  const std::string bytes = PackEntries(entries);
  auto reader = RouteRecordReader::Read(
      std::make_unique<std::istringstream>(bytes), "r.tlrec", 16);
  ASSERT_FALSE(reader.ok());
  EXPECT_THAT(std::string(reader.status().message()),
              HasSubstr("record 0 (header): length"));
}

// One fault in one field of one message, and how the error names it.
struct Mutation {
  std::string field;
  size_t entry;
  std::function<void(v1::RouteRecordEntry*)> break_it;
};

v1::SelectionStatistics* Stats(v1::RouteRecordEntry* e) {
  return e->mutable_layer()->mutable_statistics();
}
v1::AcceptedRouteHandoff* Handoff(v1::RouteRecordEntry* e) {
  return e->mutable_layer()->mutable_handoff();
}
v1::PhysicalPlan* Physical(v1::RouteRecordEntry* e) {
  return e->mutable_layer()->mutable_physical();
}

std::vector<Mutation> HeaderMutations() {
  const auto layer = [](v1::RouteRecordEntry* e) {
    return e->mutable_header()->mutable_layers(0);
  };
  return {
      {"magic", 0, [](auto* e) { e->mutable_header()->set_magic("other"); }},
      {"format_version", 0,
       [](auto* e) { e->mutable_header()->set_format_version(2); }},
      {"row_dtype", 0,
       [](auto* e) { e->mutable_header()->set_row_dtype("x"); }},
      {"layers", 0, [](auto* e) { e->mutable_header()->clear_layers(); }},
      {"layers[1].layer", 0,
       [](auto* e) { e->mutable_header()->mutable_layers(1)->set_layer(1); }},
      {"layers[0]: experts", 0, [=](auto* e) { layer(e)->set_experts(0); }},
      {"layers[0]: width", 0, [=](auto* e) { layer(e)->set_width(0); }},
      {"policy.top_k", 0, [=](auto* e) { layer(e)->set_top_k(3); }},
      {"policy.experts", 0, [=](auto* e) { layer(e)->set_experts(9); }},
      {"policy.transform", 0,
       [=](auto* e) { layer(e)->mutable_policy()->clear_transform(); }},
      {"tie", 0,
       [=](auto* e) {
         layer(e)->mutable_policy()->set_tie(v1::RouterPolicyRecord::NO_RULE);
       }},
      {"bias", 0, [=](auto* e) { layer(e)->mutable_bias()->RemoveLast(); }},
      {"admission.kind", 0,
       [=](auto* e) { layer(e)->mutable_admission()->clear_kind(); }},
      {"representation.form", 0,
       [=](auto* e) { layer(e)->mutable_representation()->clear_form(); }},
  };
}

std::vector<Mutation> LayerMutations() {
  return {
      {"layer: 2", 2, [](auto* e) { e->mutable_layer()->set_layer(2); }},
      {"statistics.tokens", 2, [](auto* e) { Stats(e)->set_tokens(0); }},
      {"group_identity", 2, [](auto* e) { Stats(e)->add_group_identity(0); }},
      {"request_of_token", 2,
       [](auto* e) { Stats(e)->add_request_of_token(0); }},
      {"valid_token_mask", 2,
       [](auto* e) { Stats(e)->mutable_valid_token_mask()->push_back(1); }},
      {"router_scores", 2,
       [](auto* e) { Stats(e)->mutable_router_scores()->RemoveLast(); }},
      {"router_scores[3]", 2,
       [](auto* e) { Stats(e)->set_router_scores(3, NAN); }},
      {"origin_token_id[0]", 2,
       [](auto* e) { Stats(e)->set_origin_token_id(0, 99); }},
      {"selected_slot", 2,
       [](auto* e) { Stats(e)->mutable_selected_slot()->RemoveLast(); }},
      {"selected_slot[1]", 2,
       [](auto* e) { Stats(e)->set_selected_slot(1, 0); }},
      {"selected_expert_id[1]", 2,
       [](auto* e) { Stats(e)->set_selected_expert_id(1, 16); }},
      {"selected_gate[0]", 2,
       [](auto* e) { Stats(e)->set_selected_gate(0, INFINITY); }},
      {"admission_mask[0]", 2,
       [](auto* e) { (*Stats(e)->mutable_admission_mask())[0] = 3; }},
      {"executed_expert_id", 2,
       [](auto* e) { Stats(e)->add_executed_expert_id(0); }},
      {"selected_counts[0]", 2,
       [](auto* e) {
         Stats(e)->set_selected_counts(0, Stats(e)->selected_counts(0) + 1);
       }},
      {"executed_counts[2]", 2,
       [](auto* e) {
         Stats(e)->set_executed_counts(2, Stats(e)->executed_counts(2) + 1);
       }},
      {"dropped_route_id", 2,
       [](auto* e) { Stats(e)->add_dropped_route_id(0); }},
      {"objective.score_mass", 2,
       [](auto* e) { Stats(e)->mutable_objective()->clear_score_mass(); }},
      {"tie_state.rule", 2, [](auto* e) { Stats(e)->clear_tie_state(); }},
      {"noise_state.source", 2, [](auto* e) { Stats(e)->clear_noise_state(); }},
      {"noise_state.draws", 2,
       [](auto* e) { Stats(e)->mutable_noise_state()->add_draws(0.5); }},
      {"token_order", 2, [](auto* e) { Handoff(e)->clear_token_order(); }},
      {"accepted_route_id[0]", 2,
       [](auto* e) { Handoff(e)->set_accepted_route_id(0, 999); }},
      {"handoff.origin_token_id[0]", 2,
       [](auto* e) {
         Handoff(e)->set_origin_token_id(0, Handoff(e)->origin_token_id(0) + 1);
       }},
      {"handoff.logical_expert_id[0]", 2,
       [](auto* e) {
         Handoff(e)->set_logical_expert_id(
             0, Handoff(e)->logical_expert_id(0) + 1);
       }},
      {"handoff.gate[0]", 2,
       [](auto* e) {
         Handoff(e)->set_gate(0, std::nextafter(Handoff(e)->gate(0), 9.0f));
       }},
      {"expert_local_row", 2,
       [](auto* e) { Handoff(e)->add_expert_local_row(0); }},
      {"expert_counts[0]", 2,
       [](auto* e) {
         Handoff(e)->set_expert_counts(0, Handoff(e)->expert_counts(0) + 1);
       }},
      {"prefix_offsets[0]", 2,
       [](auto* e) { Handoff(e)->set_prefix_offsets(0, 1); }},
      {"represented_rows", 2,
       [](auto* e) { Handoff(e)->set_represented_rows(1); }},
      {"handoff.representation", 2,
       [](auto* e) {
         Handoff(e)->mutable_representation()->set_form(
             v1::RepresentationRecord::MAX_LOAD);
       }},
      {"backward_state", 2,
       [](auto* e) { Handoff(e)->clear_backward_state(); }},
      {"placement_version", 2,
       [](auto* e) { Handoff(e)->set_placement_version(0); }},
      {"physical.worker", 2, [](auto* e) { Physical(e)->add_worker(1); }},
      {"physical.worker[0]", 2,
       [](auto* e) { Physical(e)->set_worker(0, UINT32_MAX); }},
      {"physical.completion[0]", 2,
       [](auto* e) {
         Physical(e)->set_completion(0,
                                     v1::PhysicalPlan::COMPLETION_UNSPECIFIED);
       }},
      {"physical.placement_version[0]", 2,
       [](auto* e) { Physical(e)->set_placement_version(0, 4); }},
      {"physical", 2,
       [](auto* e) { e->mutable_layer()->set_completed(false); }},
  };
}

TEST(RouteRecordFile, EveryBrokenFieldIsNamedWithItsRecord) {
  const Entries good = EntriesOf(MakeTestRecording(2));
  std::vector<Mutation> all = HeaderMutations();
  for (Mutation& m : LayerMutations()) all.push_back(std::move(m));
  for (const Mutation& mutation : all) {
    Entries entries = good;
    mutation.break_it(&entries[mutation.entry]);
    const auto read = ReadAll(PackEntries(entries), nullptr);
    ASSERT_FALSE(read.ok()) << mutation.field;
    EXPECT_THAT(std::string(read.status().message()),
                HasSubstr(mutation.field));
    EXPECT_THAT(std::string(read.status().message()),
                HasSubstr(absl::StrCat("record ", mutation.entry)))
        << mutation.field;
  }
}

TEST(RouteRecordFile, TotalsThatAreNotTheSumsAreAnError) {
  const auto totals = [](v1::RouteRecordEntry* e) {
    return e->mutable_trailer()->mutable_layers(1);
  };
  const std::vector<Mutation> all = {
      {"layers[1].records", 5, [=](auto* e) { totals(e)->set_records(3); }},
      {"layers[1].selected", 5, [=](auto* e) { totals(e)->set_selected(1); }},
      {"layers[1].executed", 5, [=](auto* e) { totals(e)->set_executed(1); }},
      {"layers[1].at_end.selected", 5,
       [=](auto* e) { totals(e)->mutable_at_end()->set_selected(101); }},
      {"layers[1].at_end.executed", 5,
       [=](auto* e) { totals(e)->mutable_at_begin()->set_executed(91); }},
      {"layers[1].layer", 5, [=](auto* e) { totals(e)->set_layer(3); }},
      {"layers", 5,
       [=](auto* e) { e->mutable_trailer()->mutable_layers()->RemoveLast(); }},
      {"seconds", 5, [=](auto* e) { e->mutable_trailer()->set_seconds(-1); }},
      {"end", 5, [=](auto* e) { e->mutable_trailer()->clear_end(); }},
  };
  for (const Mutation& mutation : all) {
    Entries entries = EntriesOf(MakeTestRecording(2));
    ASSERT_TRUE(entries[mutation.entry].has_trailer());
    mutation.break_it(&entries[mutation.entry]);
    const auto read = ReadAll(PackEntries(entries), nullptr);
    ASSERT_FALSE(read.ok()) << mutation.field;
    EXPECT_THAT(std::string(read.status().message()),
                HasSubstr("trailer: " + mutation.field));
  }
  // What was left out is missing from the file and counted.
  Entries entries = EntriesOf(MakeTestRecording(2));
  auto* all_layers = totals(&entries[5]);
  all_layers->set_selected(all_layers->selected() + 8);
  all_layers->set_executed(all_layers->executed() + 8);
  all_layers->set_records_left_out(1);
  all_layers->set_selected_left_out(8);
  all_layers->set_executed_left_out(8);
  all_layers->mutable_at_end()->set_selected(all_layers->at_end().selected() +
                                             8);
  all_layers->mutable_at_end()->set_executed(all_layers->at_end().executed() +
                                             8);
  const auto read = ReadAll(PackEntries(entries), nullptr);
  EXPECT_TRUE(read.ok()) << read.status();
}

TEST(RouteRecordFile, MessagesOutOfPlaceAreErrors) {
  const Entries good = EntriesOf(MakeTestRecording(1));
  Entries no_header(good.begin() + 1, good.end());
  EXPECT_FALSE(ReadAll(PackEntries(no_header), nullptr).ok());
  Entries two_headers = good;
  two_headers.insert(two_headers.begin(), good[0]);
  EXPECT_FALSE(ReadAll(PackEntries(two_headers), nullptr).ok());
  Entries after_end = good;
  after_end.push_back(good[1]);
  EXPECT_FALSE(ReadAll(PackEntries(after_end), nullptr).ok());
  Entries no_trailer(good.begin(), good.end() - 1);
  EXPECT_THAT(
      std::string(ReadAll(PackEntries(no_trailer), nullptr).status().message()),
      HasSubstr("without a trailer"));
}

// The fields that the two records must have (tests/fixtures) each have one of
// ours.
TEST(RouteRecordFile, HasEveryFieldOfTheTwoRecords) {
  std::ifstream file(TRUNKLINE_FIXTURES "/routing/handoff_records.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  const std::map<std::string, std::string> renamed = {
      {"router_probabilities[T,E]", "router_scores"},
      {"selected_expert_ids[T,k]", "selected_expert_id"},
      {"selected_slots[T,k]", "selected_slot"},
      {"selected_gate_weights[T,k]", "selected_gate"},
      {"admission_mask[T,k]", "admission_mask"},
      {"selected_counts[E]", "selected_counts"},
      {"executed_counts[E]", "executed_counts"},
      {"dropped_route_ids", "dropped_route_id"},
      {"objective_statistics", "objective"},
      {"noise_random_state", "noise_state"},
      {"accepted_route_ids", "accepted_route_id"},
      {"origin_token_ids", "origin_token_id"},
      {"selected_slots", "selected_slot"},
      {"logical_expert_ids", "logical_expert_id"},
      {"gate_weights", "gate"},
      {"per_expert_counts", "expert_counts"},
      {"representation_policy", "representation"},
      {"block_size", "block_rows"},
      {"backward_state_policy", "backward_state"},
      {"origin_rank", "origin"},
      {"physical_replica", "replica"},
      {"destination_rank", "worker"},
      {"local_kernel_row", "local_row"},
      {"completion_state", "completion"}};
  const auto check = [&](const nlohmann::json& fields,
                         const google::protobuf::Descriptor* message) {
    ASSERT_FALSE(fields.empty());
    for (const std::string name : fields) {
      const auto at = renamed.find(name);
      EXPECT_NE(
          message->FindFieldByName(at == renamed.end() ? name : at->second),
          nullptr)
          << name;
    }
  };
  check(fixture["statistics_record_M6_2"]["fields"],
        v1::SelectionStatistics::descriptor());
  check(fixture["execution_record_M6_6"]["fields"],
        v1::AcceptedRouteHandoff::descriptor());
  check(fixture["physical_plan_added_by_runtime"],
        v1::PhysicalPlan::descriptor());
}

}  // namespace
}  // namespace trunkline::trunk
