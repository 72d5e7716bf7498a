#include "cli/recording_sink.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/format.h"
#include "common/status_macros.h"

namespace trunkline::cli {

absl::Status RecordingSink::Begin(const v1::RouteRecordEntry& entry) {
  if (!entry.has_header())
    return absl::InternalError("the recording does not begin with a header");
  // A server of another version would fill the file with what replay refuses.
  TL_RETURN_IF_ERROR(trunk::HeaderFromProto(entry.header()).status());
  TL_ASSIGN_OR_RETURN(writer_, trunk::RouteRecordWriter::Create(path_));
  recording_id_ = entry.header().recording_id();
  trailer_.set_end(v1::RouteRecordTrailer::CONNECTION_LOST);
  for (const v1::RecordedLayerShape& layer : entry.header().layers())
    trailer_.add_layers()->set_layer(layer.layer());
  return absl::OkStatus();
}

absl::Status RecordingSink::Count(const v1::RoutedLayer& layer) {
  for (v1::RecordedLayerTotals& totals : *trailer_.mutable_layers()) {
    if (totals.layer() != layer.layer()) continue;
    ++records_;
    totals.set_records(totals.records() + 1);
    totals.set_selected(
        totals.selected() +
        static_cast<uint64_t>(layer.statistics().origin_token_id_size()));
    if (layer.completed())
      totals.set_executed(
          totals.executed() +
          static_cast<uint64_t>(layer.handoff().accepted_route_id_size()));
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(
      "the recording has layer ", layer.layer(), ", its header has not"));
}

absl::Status RecordingSink::Add(const v1::RecordChunk& chunk) {
  for (const v1::RouteRecordEntry& entry : chunk.entries()) {
    if (ended_)
      return absl::InternalError("the recording goes on after its trailer");
    if (writer_ == nullptr) {
      TL_RETURN_IF_ERROR(Begin(entry));
    } else if (entry.has_layer()) {
      TL_RETURN_IF_ERROR(Count(entry.layer()));
    } else if (entry.has_trailer()) {
      trailer_ = entry.trailer();
      ended_ = true;
    } else {
      return absl::InternalError(
          "the recording has a message of no known kind");
    }
    TL_RETURN_IF_ERROR(writer_->Append(entry));
  }
  return absl::OkStatus();
}

absl::Status RecordingSink::Finish() {
  if (writer_ == nullptr) return absl::OkStatus();
  if (!ended_) {
    v1::RouteRecordEntry entry;
    *entry.mutable_trailer() = trailer_;
    TL_RETURN_IF_ERROR(writer_->Append(entry));
  }
  return writer_->Finish();
}

std::string RecordingSink::Summary() const {
  uint64_t selected = 0, left_out = 0;
  for (const v1::RecordedLayerTotals& layer : trailer_.layers()) {
    selected += layer.selected() - layer.selected_left_out();
    left_out += layer.records_left_out();
  }
  return absl::StrCat(
      path_, ": ", records_, " records of ", trailer_.layers_size(),
      trailer_.layers_size() == 1 ? " layer, " : " layers, ", selected,
      " routes in ", HumanDuration(absl::Seconds(trailer_.seconds())), ", ",
      HumanBytes(bytes_written()),
      left_out == 0 ? std::string()
                    : absl::StrCat("; ", left_out,
                                   " records left out for lack of room "
                                   "(--buffer)"));
}

}  // namespace trunkline::cli
