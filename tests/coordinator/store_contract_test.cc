// The contract of placement stores, run by the one in a file and the one in a
// real etcd.

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/store_etcd.h"
#include "coordinator/store_sqlite.h"
#include "tests/contract/placement_store_contract.h"
#include "tests/coordinator/etcd_process.h"

namespace trunkline::coordinator {
namespace {

class SqliteBackend final : public StoreBackend {
 public:
  absl::StatusOr<std::unique_ptr<PlacementStore>> Open(
      uint64_t new_cluster_id) override {
    return OpenSqliteStore(dir_.path() + "/state.db", new_cluster_id);
  }

 private:
  trunkline::testing::TempDir dir_;
};

class EtcdBackend final : public StoreBackend {
 public:
  static std::unique_ptr<StoreBackend> Make() {
    auto etcd = trunkline::testing::EtcdProcess::Start();
    EXPECT_TRUE(etcd.ok()) << etcd.status();
    if (!etcd.ok()) return nullptr;
    return std::make_unique<EtcdBackend>(*std::move(etcd));
  }
  explicit EtcdBackend(std::unique_ptr<trunkline::testing::EtcdProcess> etcd)
      : etcd_(std::move(etcd)),
        client_(std::make_shared<EtcdClient>(etcd_->endpoints(),
                                             absl::Seconds(20))) {}

  absl::StatusOr<std::unique_ptr<PlacementStore>> Open(
      uint64_t new_cluster_id) override {
    EtcdLead lead{.key = EtcdLeaderKey("/test")};
    TL_ASSIGN_OR_RETURN(lead.create_revision,
                        trunkline::testing::TakeLead(*client_, lead.key));
    return OpenEtcdStore(client_, "/test", lead, new_cluster_id);
  }

 private:
  const std::unique_ptr<trunkline::testing::EtcdProcess> etcd_;
  const std::shared_ptr<EtcdClient> client_;
};

INSTANTIATE_TEST_SUITE_P(
    Stores, PlacementStoreContract,
    ::testing::Values(
        StoreBackendCase{"Sqlite",
                         [] { return std::make_unique<SqliteBackend>(); }},
        StoreBackendCase{"Etcd", [] { return EtcdBackend::Make(); }}),
    [](const auto& suite) { return suite.param.name; });

}  // namespace
}  // namespace trunkline::coordinator
