#include "coordinator/store_etcd.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/status_to_grpc.h"
#include "coordinator/etcd_contents.h"
#include "coordinator/placement_record_proto.h"
#include "proto/placement_store.pb.h"

namespace trunkline::coordinator {
namespace {

namespace pb = etcdserverpb;
using store::v1::Pending;
using store::v1::Write;

constexpr char kSchemaVersion[] = "1";
// etcd takes 128 operations and 1.5 MiB in one transaction by default; some
// are the fence's.
constexpr int kBatchWritesMax = 100;
constexpr size_t kBatchBytesMax = size_t{1} << 20;

pb::RequestOp RangeOp(const std::string& key, const std::string& end = "") {
  pb::RequestOp op;
  op.mutable_request_range()->set_key(key);
  op.mutable_request_range()->set_range_end(end);
  return op;
}

pb::RequestOp PutOp(const std::string& key, const std::string& value) {
  pb::RequestOp op;
  op.mutable_request_put()->set_key(key);
  op.mutable_request_put()->set_value(value);
  return op;
}

pb::RequestOp DeleteOp(const std::string& key, const std::string& end = "") {
  pb::RequestOp op;
  op.mutable_request_delete_range()->set_key(key);
  op.mutable_request_delete_range()->set_range_end(end);
  return op;
}

pb::RequestOp OpOf(const Write& write) {
  return write.remove() ? DeleteOp(write.key(), write.range_end())
                        : PutOp(write.key(), write.value());
}

Write PutOf(const std::string& key, std::string value) {
  Write write;
  write.set_key(key);
  write.set_value(std::move(value));
  return write;
}

Write RemoveOf(const std::string& key, const std::string& end = "") {
  Write write;
  write.set_key(key);
  write.set_range_end(end);
  write.set_remove(true);
  return write;
}

// The value of the one key that a range response holds; empty: no such key.
std::string ValueIn(const pb::ResponseOp& op) {
  const pb::RangeResponse& range = op.response_range();
  return range.kvs_size() == 0 ? "" : range.kvs(0).value();
}

int64_t ModRevisionIn(const pb::ResponseOp& op) {
  const pb::RangeResponse& range = op.response_range();
  return range.kvs_size() == 0 ? 0 : range.kvs(0).mod_revision();
}

class EtcdStore final : public PlacementStore {
 public:
  EtcdStore(std::shared_ptr<EtcdClient> client, const std::string& prefix,
            EtcdLead lead)
      : client_(std::move(client)), keys_(prefix), lead_(std::move(lead)) {}

  absl::Status Begin(uint64_t new_cluster_id) {
    pb::TxnRequest look;
    *look.add_success() = RangeOp(keys_.schema());
    *look.add_success() = RangeOp(keys_.epoch());
    *look.add_success() = RangeOp(keys_.cluster());
    TL_ASSIGN_OR_RETURN(const pb::TxnResponse found, client_->Txn(look));
    if (found.responses_size() != 3) return NoAnswer();
    const std::string schema = ValueIn(found.responses(0));
    TL_RETURN_IF_ERROR(CheckSchema(schema));
    const std::string epoch = ValueIn(found.responses(1));
    uint64_t before = 0;
    if (!epoch.empty() && !absl::SimpleAtoi(epoch, &before)) {
      return absl::DataLossError(
          absl::StrCat("etcd key ", keys_.epoch(), ": is no number"));
    }
    pb::TxnRequest begin;
    CompareLead(&begin);
    pb::Compare* same = begin.add_compare();
    same->set_key(keys_.epoch());
    same->set_target(pb::Compare::MOD);
    same->set_mod_revision(ModRevisionIn(found.responses(1)));
    *begin.add_success() = PutOp(keys_.epoch(), absl::StrCat(before + 1));
    // The first write that the next one has to come after.
    *begin.add_success() =
        PutOp(keys_.commit(), absl::StrCat(before + 1, ".0"));
    if (schema.empty()) {
      *begin.add_success() = PutOp(keys_.schema(), kSchemaVersion);
    }
    ClusterRecord cluster;
    cluster.cluster_id = new_cluster_id;
    if (const std::string bytes = ValueIn(found.responses(2)); !bytes.empty()) {
      absl::StatusOr<ClusterRecord> stored = DecodeCluster(bytes);
      if (!stored.ok()) return Annotate(stored.status(), keys_.cluster());
      cluster = *std::move(stored);
    } else {
      *begin.add_success() = PutOp(keys_.cluster(), EncodeCluster(cluster));
    }
    TL_ASSIGN_OR_RETURN(const pb::TxnResponse begun, client_->Txn(begin));
    if (!begun.succeeded()) {
      return absl::FailedPreconditionError(
          "the lead was lost before its epoch began");
    }
    epoch_ = before + 1;
    commit_revision_ = begun.header().revision();
    cluster_id_ = cluster.cluster_id;
    return absl::OkStatus();
  }

  // The write in front of the read is a barrier: a write of ours that was
  // given up for lost can not arrive any more after it.
  absl::StatusOr<StoreContents> Load() override {
    TL_ASSIGN_OR_RETURN(
        const pb::TxnResponse response,
        Fenced({RangeOp(keys_.prefix(), PrefixEnd(keys_.prefix()))},
               /*after_last=*/false));
    if (response.responses_size() != 2) return NoAnswer();
    KeyValues records;
    for (const pb::KeyValue& kv :
         response.responses(1).response_range().kvs()) {
      records[kv.key()] = kv.value();
    }
    TL_RETURN_IF_ERROR(FinishPending(&records));
    TL_ASSIGN_OR_RETURN(StoreContents contents, ContentsFrom(keys_, records));
    contents.cluster.epoch = epoch_;
    maps_written_.clear();
    for (const PlacementRecord& placement : contents.placements) {
      maps_written_.insert(placement.map.version);
    }
    return contents;
  }

  absl::Status Commit(const StoreChange& change) override {
    std::vector<Pending> batches = BatchesOf(change);
    if (batches.empty()) return absl::OkStatus();
    const absl::Status status = batches.size() == 1 ? WriteBatch(batches[0], {})
                                                    : WriteInSteps(batches);
    if (!status.ok()) return status;
    for (const PlacementRecord& placement : change.placements) {
      maps_written_.insert(placement.map.version);
    }
    for (const PlacementVersion version : change.forgotten_placements) {
      maps_written_.erase(version);
    }
    return absl::OkStatus();
  }

  // Reads with the fence's comparisons; etcd serves them as of a moment of the
  // call, agreed upon by a majority, because they are not "serializable".
  absl::Status Confirm() override {
    pb::TxnRequest request = Fence(/*after_last=*/true);
    *request.add_success() = RangeOp(lead_.key);
    TL_ASSIGN_OR_RETURN(const pb::TxnResponse response, client_->Txn(request));
    if (response.succeeded()) return absl::OkStatus();
    if (response.responses_size() != 3) return NoAnswer();
    absl::Status refused = WhyRefused(response);
    if (absl::IsFailedPrecondition(refused))
      control::SetNotLeading(ValueIn(response.responses(0)), &refused);
    return refused;
  }

 private:
  static absl::Status NoAnswer() {
    return absl::InternalError("etcd answered another request");
  }

  absl::Status CheckSchema(const std::string& schema) {
    if (schema == kSchemaVersion) return absl::OkStatus();
    if (!schema.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("etcd prefix ", keys_.prefix(), ": schema version ",
                       schema, ", this program reads ", kSchemaVersion));
    }
    // A new prefix holds the election's key alone; somebody else's is left
    // alone.
    pb::RangeRequest all;
    all.set_key(keys_.prefix());
    all.set_range_end(PrefixEnd(keys_.prefix()));
    TL_ASSIGN_OR_RETURN(const pb::RangeResponse found, client_->Range(all));
    for (const pb::KeyValue& kv : found.kvs()) {
      if (kv.key() == lead_.key) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("etcd prefix ", keys_.prefix(), ": holds the key ",
                       kv.key(), " of another program"));
    }
    return absl::OkStatus();
  }

  void CompareLead(pb::TxnRequest* request) const {
    pb::Compare* lead = request->add_compare();
    lead->set_key(lead_.key);
    lead->set_target(pb::Compare::CREATE);
    lead->set_create_revision(lead_.create_revision);
  }

  // What a transaction compares, and what it tells when that does not hold.
  // after_last: only if nothing was written since this store's last write.
  pb::TxnRequest Fence(bool after_last) const {
    pb::TxnRequest request;
    CompareLead(&request);
    pb::Compare* epoch = request.add_compare();
    epoch->set_key(keys_.epoch());
    epoch->set_target(pb::Compare::VALUE);
    epoch->set_value(absl::StrCat(epoch_));
    if (after_last) {
      pb::Compare* last = request.add_compare();
      last->set_key(keys_.commit());
      last->set_target(pb::Compare::MOD);
      last->set_mod_revision(commit_revision_);
    }
    for (const std::string& key : {lead_.key, keys_.epoch(), keys_.commit()}) {
      *request.add_failure() = RangeOp(key);
    }
    return request;
  }

  // One transaction under the fence.
  absl::StatusOr<pb::TxnResponse> Fenced(const std::vector<pb::RequestOp>& ops,
                                         bool after_last) {
    pb::TxnRequest request = Fence(after_last);
    const std::string commit = absl::StrCat(epoch_, ".", ++commit_sequence_);
    *request.add_success() = PutOp(keys_.commit(), commit);
    for (const pb::RequestOp& op : ops) *request.add_success() = op;
    TL_ASSIGN_OR_RETURN(pb::TxnResponse response, client_->Txn(request));
    if (response.succeeded()) {
      commit_revision_ = response.header().revision();
      return response;
    }
    if (response.responses_size() != 3) return NoAnswer();
    // The client sent it twice and the first one had arrived.
    if (ValueIn(response.responses(2)) == commit) {
      commit_revision_ = ModRevisionIn(response.responses(2));
      return response;
    }
    return WhyRefused(response);
  }

  absl::Status WhyRefused(const pb::TxnResponse& response) const {
    const std::string leader = ValueIn(response.responses(0));
    const std::string epoch = ValueIn(response.responses(1));
    const pb::RangeResponse& lead = response.responses(0).response_range();
    if (lead.kvs_size() == 1 &&
        lead.kvs(0).create_revision() == lead_.create_revision &&
        epoch == absl::StrCat(epoch_)) {
      return absl::AbortedError(
          absl::StrCat("etcd prefix ", keys_.prefix(),
                       ": was written by somebody else under epoch ", epoch_));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "etcd prefix ", keys_.prefix(), ": this coordinator's epoch ", epoch_,
        " is over; ",
        leader.empty() ? "nobody leads" : absl::StrCat(leader, " leads"),
        ", the epoch is ", epoch));
  }

  std::vector<Pending> BatchesOf(const StoreChange& change) const {
    // By key, so that a record that is written and forgotten is gone.
    std::map<std::string, Write> writes;
    const auto put = [&](const std::string& key, std::string value) {
      writes[key] = PutOf(key, std::move(value));
    };
    const auto remove = [&](const std::string& key) {
      writes[key] = RemoveOf(key);
    };
    if (change.cluster) {
      ClusterRecord cluster = *change.cluster;
      cluster.cluster_id = cluster_id_;  // given at birth, never changed
      put(keys_.cluster(), EncodeCluster(cluster));
    }
    for (const WorkerRecord& worker : change.workers) {
      put(keys_.worker(worker.id), EncodeWorker(worker));
    }
    for (const WorkerId worker : change.forgotten_workers) {
      remove(keys_.worker(worker));
    }
    for (const PlacementRecord& placement : change.placements) {
      const PlacementVersion version = placement.map.version;
      put(keys_.placement(version), EncodePlacement(placement));
      if (!maps_written_.contains(version)) {
        put(keys_.map(version), EncodeMap(placement.map));
      }
    }
    for (const PlacementVersion version : change.forgotten_placements) {
      remove(keys_.placement(version));
      remove(keys_.map(version));
    }
    for (const HistoryRecord& entry : change.history) {
      if (entry.sequence < change.history_from) continue;
      put(keys_.history(entry.sequence), EncodeHistory(entry));
    }
    if (!change.history.empty() && change.history_from > 0) {
      const std::string first = keys_.history(0);
      writes[first] = RemoveOf(first, keys_.history(change.history_from));
    }
    return Split(writes);
  }

  static std::vector<Pending> Split(
      const std::map<std::string, Write>& writes) {
    std::vector<Pending> batches;
    size_t bytes = 0;
    for (const auto& [key, write] : writes) {
      const size_t more = write.ByteSizeLong();
      if (batches.empty() || batches.back().writes_size() >= kBatchWritesMax ||
          bytes + more > kBatchBytesMax) {
        batches.emplace_back();
        bytes = 0;
      }
      *batches.back().add_writes() = write;
      bytes += more;
    }
    return batches;
  }

  absl::Status WriteBatch(const Pending& batch,
                          const std::vector<pb::RequestOp>& more) {
    std::vector<pb::RequestOp> ops = more;
    for (const Write& write : batch.writes()) ops.push_back(OpOf(write));
    return Fenced(ops, /*after_last=*/true).status();
  }

  // A change too large for one transaction: its batches are put down first,
  // then, in one step, that they count; from there on it has happened, and
  // whoever loads the store finishes it.
  absl::Status WriteInSteps(const std::vector<Pending>& batches) {
    for (size_t i = 0; i < batches.size(); ++i) {
      TL_RETURN_IF_ERROR(Fenced({PutOp(keys_.pending_batch(i),
                                       batches[i].SerializeAsString())},
                                /*after_last=*/true)
                             .status());
    }
    TL_RETURN_IF_ERROR(
        Fenced({PutOp(keys_.pending(), absl::StrCat(batches.size()))},
               /*after_last=*/true)
            .status());
    return ApplyBatches(batches);
  }

  absl::Status ApplyBatches(const std::vector<Pending>& batches) {
    for (size_t i = 0; i < batches.size(); ++i) {
      std::vector<pb::RequestOp> more;
      if (i + 1 == batches.size()) {
        const std::string first = keys_.pending_batch(0);
        more.push_back(DeleteOp(keys_.pending()));
        more.push_back(DeleteOp(first, keys_.pending_batch(batches.size())));
      }
      TL_RETURN_IF_ERROR(WriteBatch(batches[i], more));
    }
    return absl::OkStatus();
  }

  // Finishes a change that was put down whole and not yet written everywhere,
  // in `records` as in etcd.
  absl::Status FinishPending(KeyValues* records) {
    const auto counted = records->find(keys_.pending());
    size_t count = 0;
    if (counted != records->end() &&
        !absl::SimpleAtoi(counted->second, &count)) {
      return absl::DataLossError(
          absl::StrCat("etcd key ", keys_.pending(), ": is no number"));
    }
    std::vector<Pending> batches(count);
    for (size_t i = 0; i < count; ++i) {
      const auto found = records->find(keys_.pending_batch(i));
      if (found == records->end() ||
          !batches[i].ParseFromString(found->second)) {
        return absl::DataLossError(absl::StrCat(
            "etcd key ", keys_.pending_batch(i), ": is no batch of writes"));
      }
    }
    for (const Pending& batch : batches) {
      for (const Write& write : batch.writes()) ApplyTo(records, write);
    }
    // Batches that were never counted belong to a change that never happened.
    keys_.ErasePending(records);
    return count == 0 ? absl::OkStatus() : ApplyBatches(batches);
  }

  static void ApplyTo(KeyValues* records, const Write& write) {
    if (!write.remove()) {
      (*records)[write.key()] = write.value();
    } else if (write.range_end().empty()) {
      records->erase(write.key());
    } else {
      records->erase(records->lower_bound(write.key()),
                     records->lower_bound(write.range_end()));
    }
  }

  const std::shared_ptr<EtcdClient> client_;
  const EtcdKeys keys_;
  const EtcdLead lead_;
  uint64_t epoch_ = 0;
  uint64_t cluster_id_ = 0;
  uint64_t commit_sequence_ = 0;
  int64_t commit_revision_ = 0;  // of this store's last write
  std::set<PlacementVersion> maps_written_;
};

}  // namespace

std::string EtcdLeaderKey(const std::string& prefix) {
  return EtcdKeys(prefix).leader();
}

absl::StatusOr<std::unique_ptr<PlacementStore>> OpenEtcdStore(
    std::shared_ptr<EtcdClient> client, const std::string& prefix,
    const EtcdLead& lead, uint64_t new_cluster_id) {
  auto store = std::make_unique<EtcdStore>(std::move(client), prefix, lead);
  TL_RETURN_IF_ERROR(store->Begin(new_cluster_id));
  return store;
}

}  // namespace trunkline::coordinator
