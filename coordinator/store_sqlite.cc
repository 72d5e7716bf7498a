#include "coordinator/store_sqlite.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "coordinator/sqlite_database.h"
#include "placement/placement_json.h"

namespace trunkline::coordinator {
namespace {

constexpr uint64_t kSchemaVersion = 2;

// Exclusive locking makes a second coordinator on the same file fail at its
// start, and needs no shared memory beside the log.
constexpr char kSetup[] = R"sql(
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
)sql";

constexpr char kTables[] = R"sql(
CREATE TABLE cluster (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  cluster_id INTEGER NOT NULL, epoch INTEGER NOT NULL,
  next_worker INTEGER NOT NULL, next_version INTEGER NOT NULL,
  next_history INTEGER NOT NULL,
  pinned INTEGER NOT NULL, pin_reason TEXT NOT NULL,
  has_model INTEGER NOT NULL, model_digest TEXT NOT NULL,
  numerics_class TEXT NOT NULL, self_check_digest TEXT NOT NULL,
  registered_by TEXT NOT NULL, sizes_from_expert INTEGER NOT NULL);
CREATE TABLE moe_layers (
  layer INTEGER PRIMARY KEY, experts INTEGER NOT NULL,
  expert_bytes INTEGER NOT NULL);
CREATE TABLE workers (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, role INTEGER NOT NULL,
  incarnation INTEGER NOT NULL, alive INTEGER NOT NULL,
  has_left INTEGER NOT NULL, cordoned INTEGER NOT NULL,
  leaving INTEGER NOT NULL, data_address TEXT NOT NULL,
  api_address TEXT NOT NULL, metrics_address TEXT NOT NULL,
  model_digest TEXT NOT NULL, numerics_class TEXT NOT NULL,
  self_check_digest TEXT NOT NULL, failure_domain TEXT NOT NULL,
  memory_bytes INTEGER NOT NULL, speed REAL NOT NULL,
  process INTEGER NOT NULL, replaced TEXT NOT NULL, UNIQUE (name, role));
CREATE TABLE worker_versions (
  worker INTEGER NOT NULL, version INTEGER NOT NULL, state INTEGER NOT NULL,
  error TEXT NOT NULL, PRIMARY KEY (worker, version));
CREATE TABLE placements (
  version INTEGER PRIMARY KEY, state INTEGER NOT NULL, origin TEXT NOT NULL,
  reason TEXT NOT NULL, replaces INTEGER NOT NULL, document TEXT NOT NULL);
CREATE TABLE history (
  sequence INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL,
  version INTEGER NOT NULL, state INTEGER NOT NULL, detail TEXT NOT NULL);
)sql";

// Files of release 0.1 do not tell processes apart.
constexpr char kFromSchema1[] = R"sql(
ALTER TABLE workers ADD COLUMN process INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN replaced TEXT NOT NULL DEFAULT '';
)sql";

uint64_t Number(PlacementVersion version) {
  return version.valid() ? version.value : 0;
}
PlacementVersion Version(uint64_t number) {
  return number == 0 ? PlacementVersion() : PlacementVersion(number);
}

class SqliteStore final : public PlacementStore {
 public:
  explicit SqliteStore(SqliteDatabase database)
      : database_(std::move(database)) {}

  absl::Status Begin(uint64_t new_cluster_id) {
    TL_RETURN_IF_ERROR(database_.Execute(kSetup));
    TL_ASSIGN_OR_RETURN(const uint64_t schema, SchemaVersion());
    if (schema > kSchemaVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat("state file ", database_.path(), ": schema version ",
                       schema, ", this program reads ", kSchemaVersion));
    }
    return Transaction([&]() -> absl::Status {
      if (schema == 0) TL_RETURN_IF_ERROR(Create(new_cluster_id));
      if (schema == 1) TL_RETURN_IF_ERROR(database_.Execute(kFromSchema1));
      TL_RETURN_IF_ERROR(database_.Execute(
          absl::StrCat("PRAGMA user_version = ", kSchemaVersion).c_str()));
      TL_RETURN_IF_ERROR(
          database_.Execute("UPDATE cluster SET epoch = epoch + 1"));
      TL_ASSIGN_OR_RETURN(ClusterRecord cluster, LoadCluster());
      epoch_ = cluster.epoch;
      return absl::OkStatus();
    });
  }

  absl::StatusOr<StoreContents> Load() override {
    StoreContents contents;
    TL_ASSIGN_OR_RETURN(contents.cluster, LoadCluster());
    TL_RETURN_IF_ERROR(CheckEpoch(contents.cluster.epoch));
    TL_RETURN_IF_ERROR(LoadWorkers(&contents.workers));
    TL_RETURN_IF_ERROR(LoadPlacements(&contents.placements));
    TL_RETURN_IF_ERROR(LoadHistory(&contents.history));
    return contents;
  }

  absl::Status Commit(const StoreChange& change) override {
    return Transaction([&] { return Write(change); });
  }

  absl::Status Confirm() override {
    TL_ASSIGN_OR_RETURN(SqliteStatement epoch,
                        database_.Prepare("SELECT epoch FROM cluster"));
    TL_ASSIGN_OR_RETURN(const bool found, epoch.Step());
    if (!found) return Damaged("has no cluster row");
    return CheckEpoch(epoch.Unsigned());
  }

 private:
  template <typename Body>
  absl::Status Transaction(Body body) {
    TL_RETURN_IF_ERROR(database_.Execute("BEGIN IMMEDIATE"));
    absl::Status status = body();
    if (status.ok()) status = database_.Execute("COMMIT");
    // A failed rollback changes nothing: without a commit the log's frames do
    // not count.
    if (!status.ok()) database_.Execute("ROLLBACK").IgnoreError();
    return status;
  }

  absl::StatusOr<uint64_t> SchemaVersion() {
    TL_ASSIGN_OR_RETURN(SqliteStatement query,
                        database_.Prepare("PRAGMA user_version"));
    TL_RETURN_IF_ERROR(query.Step().status());
    const uint64_t version = query.Unsigned();
    if (version != 0) return version;
    // A new file has no tables; somebody else's database is left alone.
    TL_ASSIGN_OR_RETURN(
        SqliteStatement tables,
        database_.Prepare("SELECT COUNT(*) FROM sqlite_schema"));
    TL_RETURN_IF_ERROR(tables.Step().status());
    if (tables.Unsigned() != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "state file ", database_.path(), ": is another program's database"));
    }
    return version;
  }

  absl::Status Create(uint64_t new_cluster_id) {
    TL_RETURN_IF_ERROR(database_.Execute(kTables));
    TL_ASSIGN_OR_RETURN(
        SqliteStatement insert,
        database_.Prepare("INSERT INTO cluster VALUES (1, ?, 0, 0, 1, 1, 0, "
                          "'', 0, '', '', '', '', 0)"));
    return insert.Bind(new_cluster_id).Run();
  }

  absl::Status CheckEpoch(uint64_t found) const {
    if (found == epoch_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("state file ", database_.path(), ": epoch ", found,
                     " has begun, this coordinator's is ", epoch_));
  }

  absl::Status Write(const StoreChange& change) {
    TL_ASSIGN_OR_RETURN(SqliteStatement epoch,
                        database_.Prepare("SELECT epoch FROM cluster"));
    TL_RETURN_IF_ERROR(epoch.Step().status());
    TL_RETURN_IF_ERROR(CheckEpoch(epoch.Unsigned()));
    if (change.cluster) TL_RETURN_IF_ERROR(WriteCluster(*change.cluster));
    for (const WorkerRecord& worker : change.workers) {
      TL_RETURN_IF_ERROR(WriteWorker(worker));
    }
    for (const WorkerId worker : change.forgotten_workers) {
      TL_RETURN_IF_ERROR(
          Delete("DELETE FROM workers WHERE id = ?", worker.value));
      TL_RETURN_IF_ERROR(
          Delete("DELETE FROM worker_versions WHERE worker = ?", worker.value));
    }
    for (const PlacementRecord& placement : change.placements) {
      TL_RETURN_IF_ERROR(WritePlacement(placement));
    }
    for (const PlacementVersion version : change.forgotten_placements) {
      TL_RETURN_IF_ERROR(
          Delete("DELETE FROM placements WHERE version = ?", version.value));
    }
    for (const HistoryRecord& entry : change.history) {
      TL_RETURN_IF_ERROR(WriteHistory(entry));
    }
    if (change.history.empty()) return absl::OkStatus();
    return Delete("DELETE FROM history WHERE sequence < ?",
                  change.history_from);
  }

  absl::Status Delete(const char* sql, uint64_t key) {
    TL_ASSIGN_OR_RETURN(SqliteStatement statement, database_.Prepare(sql));
    return statement.Bind(key).Run();
  }

  absl::Status WriteCluster(const ClusterRecord& cluster) {
    static const ClusterModel kNoModel;
    const ClusterModel& model = cluster.model ? *cluster.model : kNoModel;
    TL_ASSIGN_OR_RETURN(
        SqliteStatement update,
        database_.Prepare(
            "UPDATE cluster SET next_worker = ?, next_version = ?, "
            "next_history = ?, pinned = ?, pin_reason = ?, has_model = ?, "
            "model_digest = ?, numerics_class = ?, self_check_digest = ?, "
            "registered_by = ?, sizes_from_expert = ?"));
    update.Bind(uint64_t{cluster.next_worker}).Bind(cluster.next_version);
    update.Bind(cluster.next_history).Bind(uint64_t{cluster.pinned});
    update.Bind(cluster.pin_reason).Bind(uint64_t{cluster.model.has_value()});
    update.Bind(model.model_digest).Bind(model.numerics_class);
    update.Bind(model.self_check_digest).Bind(model.registered_by);
    TL_RETURN_IF_ERROR(update.Bind(uint64_t{model.sizes_from_expert}).Run());
    TL_RETURN_IF_ERROR(database_.Execute("DELETE FROM moe_layers"));
    for (const placement::MoeLayerShape& shape : model.moe_layers) {
      TL_ASSIGN_OR_RETURN(
          SqliteStatement insert,
          database_.Prepare("INSERT INTO moe_layers VALUES (?, ?, ?)"));
      insert.Bind(uint64_t{shape.layer.value});
      insert.Bind(static_cast<uint64_t>(shape.experts));
      TL_RETURN_IF_ERROR(
          insert.Bind(static_cast<uint64_t>(shape.expert_bytes)).Run());
    }
    return absl::OkStatus();
  }

  absl::Status WriteWorker(const WorkerRecord& worker) {
    const control::Registration& registration = worker.registration;
    TL_ASSIGN_OR_RETURN(
        SqliteStatement insert,
        database_.Prepare("INSERT OR REPLACE INTO workers VALUES "
                          "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
                          "?, ?, ?)"));
    insert.Bind(uint64_t{worker.id.value}).Bind(registration.name);
    insert.Bind(static_cast<uint64_t>(registration.role));
    insert.Bind(worker.incarnation).Bind(uint64_t{worker.alive});
    insert.Bind(uint64_t{worker.left}).Bind(uint64_t{worker.cordoned});
    insert.Bind(uint64_t{worker.leaving}).Bind(registration.data_address);
    insert.Bind(registration.api_address).Bind(registration.metrics_address);
    insert.Bind(registration.model_digest).Bind(registration.numerics_class);
    insert.Bind(registration.self_check_digest);
    insert.Bind(registration.failure_domain).Bind(registration.memory_bytes);
    insert.Bind(registration.speed).Bind(registration.process);
    TL_RETURN_IF_ERROR(insert.Bind(absl::StrJoin(worker.replaced, ",")).Run());
    TL_RETURN_IF_ERROR(Delete("DELETE FROM worker_versions WHERE worker = ?",
                              worker.id.value));
    for (const control::VersionReport& report : worker.versions) {
      TL_ASSIGN_OR_RETURN(
          SqliteStatement version,
          database_.Prepare("INSERT INTO worker_versions VALUES (?, ?, ?, ?)"));
      version.Bind(uint64_t{worker.id.value}).Bind(report.version.value);
      version.Bind(static_cast<uint64_t>(report.state));
      TL_RETURN_IF_ERROR(version.Bind(report.error).Run());
    }
    return absl::OkStatus();
  }

  absl::Status WritePlacement(const PlacementRecord& placement) {
    TL_ASSIGN_OR_RETURN(SqliteStatement insert,
                        database_.Prepare("INSERT OR REPLACE INTO placements "
                                          "VALUES (?, ?, ?, ?, ?, ?)"));
    insert.Bind(placement.map.version.value);
    insert.Bind(static_cast<uint64_t>(placement.state)).Bind(placement.origin);
    insert.Bind(placement.reason).Bind(Number(placement.replaces));
    return insert
        .Bind(placement::PlacementToJson(
            {.map = placement.map, .worker_names = {}}))
        .Run();
  }

  absl::Status WriteHistory(const HistoryRecord& entry) {
    TL_ASSIGN_OR_RETURN(
        SqliteStatement insert,
        database_.Prepare("INSERT INTO history VALUES (?, ?, ?, ?, ?)"));
    insert.Bind(entry.sequence);
    insert.Bind(static_cast<uint64_t>(absl::ToUnixNanos(entry.at)));
    insert.Bind(entry.version.value).Bind(static_cast<uint64_t>(entry.state));
    return insert.Bind(entry.detail).Run();
  }

  absl::StatusOr<ClusterRecord> LoadCluster() {
    TL_ASSIGN_OR_RETURN(
        SqliteStatement query,
        database_.Prepare(
            "SELECT cluster_id, epoch, next_worker, next_version, "
            "next_history, pinned, pin_reason, has_model, model_digest, "
            "numerics_class, self_check_digest, registered_by, "
            "sizes_from_expert FROM cluster"));
    TL_ASSIGN_OR_RETURN(const bool found, query.Step());
    if (!found) return Damaged("has no cluster row");
    ClusterRecord cluster;
    cluster.cluster_id = query.Unsigned();
    cluster.epoch = query.Unsigned();
    cluster.next_worker = static_cast<uint32_t>(query.Unsigned());
    cluster.next_version = query.Unsigned();
    cluster.next_history = query.Unsigned();
    cluster.pinned = query.Unsigned() != 0;
    cluster.pin_reason = query.Text();
    if (query.Unsigned() == 0) return cluster;
    ClusterModel model;
    model.model_digest = query.Text();
    model.numerics_class = query.Text();
    model.self_check_digest = query.Text();
    model.registered_by = query.Text();
    model.sizes_from_expert = query.Unsigned() != 0;
    TL_ASSIGN_OR_RETURN(
        SqliteStatement layers,
        database_.Prepare("SELECT layer, experts, expert_bytes FROM moe_layers "
                          "ORDER BY layer"));
    TL_ASSIGN_OR_RETURN(bool row, layers.Step());
    while (row) {
      placement::MoeLayerShape shape;
      shape.layer = LayerIndex(static_cast<uint32_t>(layers.Unsigned()));
      shape.experts = static_cast<int64_t>(layers.Unsigned());
      shape.expert_bytes = static_cast<int64_t>(layers.Unsigned());
      model.moe_layers.push_back(shape);
      TL_ASSIGN_OR_RETURN(row, layers.Step());
    }
    cluster.model = std::move(model);
    return cluster;
  }

  absl::Status LoadWorkers(std::vector<WorkerRecord>* workers) {
    TL_ASSIGN_OR_RETURN(
        SqliteStatement query,
        database_.Prepare(
            "SELECT id, name, role, incarnation, alive, has_left, cordoned, "
            "leaving, data_address, api_address, metrics_address, "
            "model_digest, numerics_class, self_check_digest, failure_domain, "
            "memory_bytes, speed, process, replaced FROM workers "
            "ORDER BY id"));
    TL_ASSIGN_OR_RETURN(bool row, query.Step());
    while (row) {
      WorkerRecord worker;
      control::Registration& registration = worker.registration;
      worker.id = WorkerId(static_cast<uint32_t>(query.Unsigned()));
      registration.name = query.Text();
      registration.role = static_cast<control::Role>(query.Unsigned());
      worker.incarnation = query.Unsigned();
      worker.alive = query.Unsigned() != 0;
      worker.left = query.Unsigned() != 0;
      worker.cordoned = query.Unsigned() != 0;
      worker.leaving = query.Unsigned() != 0;
      registration.data_address = query.Text();
      registration.api_address = query.Text();
      registration.metrics_address = query.Text();
      registration.model_digest = query.Text();
      registration.numerics_class = query.Text();
      registration.self_check_digest = query.Text();
      registration.failure_domain = query.Text();
      registration.memory_bytes = query.Unsigned();
      registration.speed = query.Real();
      registration.process = query.Unsigned();
      TL_RETURN_IF_ERROR(ReadReplaced(query.Text(), &worker));
      if (registration.role != control::Role::kTrunk &&
          registration.role != control::Role::kExpert) {
        return Damaged(absl::StrCat("worker ", worker.id.value, " has role ",
                                    static_cast<int>(registration.role)));
      }
      TL_RETURN_IF_ERROR(LoadReports(&worker));
      workers->push_back(std::move(worker));
      TL_ASSIGN_OR_RETURN(row, query.Step());
    }
    return absl::OkStatus();
  }

  absl::Status ReadReplaced(const std::string& list, WorkerRecord* worker) {
    for (const absl::string_view one :
         absl::StrSplit(list, ',', absl::SkipEmpty())) {
      if (!absl::SimpleAtoi(one, &worker->replaced.emplace_back())) {
        return Damaged(absl::StrCat("worker ", worker->id.value,
                                    " replaced no processes: ", list));
      }
    }
    return absl::OkStatus();
  }

  absl::Status LoadReports(WorkerRecord* worker) {
    TL_ASSIGN_OR_RETURN(
        SqliteStatement query,
        database_.Prepare("SELECT version, state, error FROM worker_versions "
                          "WHERE worker = ? ORDER BY version"));
    query.Bind(uint64_t{worker->id.value});
    TL_ASSIGN_OR_RETURN(bool row, query.Step());
    while (row) {
      control::VersionReport report;
      report.version = PlacementVersion(query.Unsigned());
      const uint64_t state = query.Unsigned();
      report.error = query.Text();
      if (state < static_cast<uint64_t>(control::ShardState::kLoading) ||
          state > static_cast<uint64_t>(control::ShardState::kFailed)) {
        return Damaged(absl::StrCat("worker ", worker->id.value,
                                    " has shard state ", state));
      }
      report.state = static_cast<control::ShardState>(state);
      worker->versions.push_back(std::move(report));
      TL_ASSIGN_OR_RETURN(row, query.Step());
    }
    return absl::OkStatus();
  }

  absl::Status LoadPlacements(std::vector<PlacementRecord>* placements) {
    TL_ASSIGN_OR_RETURN(
        SqliteStatement query,
        database_.Prepare("SELECT version, state, origin, reason, replaces, "
                          "document FROM placements ORDER BY version"));
    TL_ASSIGN_OR_RETURN(bool row, query.Step());
    while (row) {
      PlacementRecord placement;
      const PlacementVersion version(query.Unsigned());
      TL_ASSIGN_OR_RETURN(placement.state, ReadState(query.Unsigned()));
      placement.origin = query.Text();
      placement.reason = query.Text();
      placement.replaces = Version(query.Unsigned());
      absl::StatusOr<placement::PlacementDocument> document =
          placement::PlacementFromJson(query.Text());
      if (!document.ok()) {
        return Damaged(absl::StrCat("placement version ", version.value, ": ",
                                    std::string(document.status().message())));
      }
      placement.map = std::move(document->map);
      if (placement.map.version != version) {
        return Damaged(absl::StrCat("placement version ", version.value,
                                    " holds another version's document"));
      }
      placements->push_back(std::move(placement));
      TL_ASSIGN_OR_RETURN(row, query.Step());
    }
    return absl::OkStatus();
  }

  absl::Status LoadHistory(std::vector<HistoryRecord>* history) {
    TL_ASSIGN_OR_RETURN(
        SqliteStatement query,
        database_.Prepare("SELECT sequence, at_ns, version, state, detail "
                          "FROM history ORDER BY sequence"));
    TL_ASSIGN_OR_RETURN(bool row, query.Step());
    while (row) {
      HistoryRecord entry;
      entry.sequence = query.Unsigned();
      entry.at = absl::FromUnixNanos(static_cast<int64_t>(query.Unsigned()));
      entry.version = PlacementVersion(query.Unsigned());
      TL_ASSIGN_OR_RETURN(entry.state, ReadState(query.Unsigned()));
      entry.detail = query.Text();
      history->push_back(std::move(entry));
      TL_ASSIGN_OR_RETURN(row, query.Step());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<placement::VersionState> ReadState(uint64_t state) {
    if (state < static_cast<uint64_t>(placement::VersionState::kProposed) ||
        state > static_cast<uint64_t>(placement::VersionState::kAbandoned)) {
      return Damaged(absl::StrCat("has placement state ", state));
    }
    return static_cast<placement::VersionState>(state);
  }

  absl::Status Damaged(const std::string& what) const {
    return absl::DataLossError(
        absl::StrCat("state file ", database_.path(), ": ", what));
  }

  SqliteDatabase database_;
  uint64_t epoch_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PlacementStore>> OpenSqliteStore(
    const std::string& path, uint64_t new_cluster_id) {
  TL_ASSIGN_OR_RETURN(SqliteDatabase database, SqliteDatabase::Open(path));
  auto store = std::make_unique<SqliteStore>(std::move(database));
  TL_RETURN_IF_ERROR(store->Begin(new_cluster_id));
  return store;
}

}  // namespace trunkline::coordinator
