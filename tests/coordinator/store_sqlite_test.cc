// The SQLite store: what was committed comes back whole, whatever happened to
// the process.

#include "coordinator/store_sqlite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/random.h"
#include "tests/coordinator/numbered_change.h"

namespace trunkline::coordinator {
namespace {

using testing::HasSubstr;

class StoreSqlite : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("store-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    path_ = (folder_ / "state.db").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(StoreSqlite, ASecondCoordinatorOnTheSameFileIsRefused) {
  auto first = OpenSqliteStore(path_, 1);
  ASSERT_TRUE(first.ok());
  const auto second = OpenSqliteStore(path_, 2);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(path_));
  first->reset();
  EXPECT_TRUE(OpenSqliteStore(path_, 2).ok());
}

TEST_F(StoreSqlite, RefusesFilesThatAreNotItsOwnNamingThem) {
  {
    std::ofstream(path_) << "these are no pages of a database, not at all. "
                         << std::string(8192, 'x');
  }
  EXPECT_EQ(OpenSqliteStore(path_, 1).status().code(),
            absl::StatusCode::kDataLoss);
  const auto missing =
      OpenSqliteStore((folder_ / "no/such/dir.db").string(), 1);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("no/such"));

  const auto make = [&](const char* name, const char* sql) {
    const std::string path = (folder_ / name).string();
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
    return OpenSqliteStore(path, 1).status();
  };
  EXPECT_THAT(std::string(make("other", "CREATE TABLE t (x)").message()),
              HasSubstr("another program"));
  EXPECT_THAT(std::string(make("newer", "PRAGMA user_version = 9").message()),
              HasSubstr("schema version 9"));
}

// Files from before processes were told apart are read on, and written as new.
TEST_F(StoreSqlite, AFileOfTheFirstSchemaIsBroughtUpToDate) {
  {
    auto store = OpenSqliteStore(path_, 1);
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE((*store)->Commit(NumberedChange(1)).ok());
  }
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db,
                         "ALTER TABLE workers DROP COLUMN process;"
                         "ALTER TABLE workers DROP COLUMN replaced;"
                         "PRAGMA user_version = 1",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  for (const uint64_t change : {1, 2}) {
    auto store = OpenSqliteStore(path_, 1);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto contents = (*store)->Load();
    ASSERT_TRUE(contents.ok()) << contents.status();
    ExpectWholeChange(*contents, change);
    EXPECT_EQ(contents->workers[0].registration.process == 0, change == 1);
    ASSERT_TRUE((*store)->Commit(NumberedChange(change + 1)).ok());
  }
}

TEST_F(StoreSqlite, DamagedRowsAreNamedAndNeverTrusted) {
  {
    auto store = OpenSqliteStore(path_, 1);
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE((*store)->Commit(NumberedChange(1)).ok());
  }
  const std::pair<const char*, const char*> damages[] = {
      {"UPDATE placements SET document = '{'", "placement version 1"},
      {"UPDATE placements SET state = 44", "state 44"},
      {"UPDATE workers SET role = 3", "role 3"},
      {"UPDATE worker_versions SET state = 0", "shard state 0"},
      {"UPDATE workers SET replaced = '1,x'", "replaced no processes: 1,x"},
      {"DELETE FROM cluster", "no cluster row"}};
  for (const auto& [sql, said] : damages) {
    const std::string copy = (folder_ / "copy.db").string();
    std::filesystem::copy_file(
        path_, copy, std::filesystem::copy_options::overwrite_existing);
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(copy.c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
    auto store = OpenSqliteStore(copy, 1);
    const absl::Status status =
        store.ok() ? (*store)->Load().status() : store.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << sql;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
    EXPECT_THAT(std::string(status.message()), HasSubstr(copy));
  }
}

// A child commits changes 1, 2, 3, ... and says so after each; it is killed at
// a random moment. The file then holds every change it spoke of, and nothing
// that is half a change.
TEST_F(StoreSqlite, AKilledWriterLeavesTheLastChangeWhole) {
  RandomStream random(20260101);
  uint64_t most = 0;
  for (int round = 0; round < 40; ++round) {
    const std::string path = (folder_ / std::to_string(round)).string();
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = OpenSqliteStore(path, 1);
      if (!store.ok()) _exit(1);
      for (uint64_t n = 1;; ++n) {
        if (!(*store)->Commit(NumberedChange(n)).ok()) _exit(2);
        if (write(pipes[1], &n, sizeof(n)) != sizeof(n)) _exit(3);
      }
    }
    close(pipes[1]);
    // Wait for the first change, then for a random while.
    uint64_t said = 0;
    ASSERT_EQ(read(pipes[0], &said, sizeof(said)),
              static_cast<ssize_t>(sizeof(said)));
    usleep(static_cast<useconds_t>(random.NextBelow(20'000)));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "child ended by itself: " << status;
    for (uint64_t n; read(pipes[0], &n, sizeof(n)) == sizeof(n);) said = n;
    close(pipes[0]);

    auto store = OpenSqliteStore(path, 2);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto contents = (*store)->Load();
    ASSERT_TRUE(contents.ok()) << contents.status();
    const uint64_t found = contents->cluster.next_version;
    EXPECT_GE(found, said);
    EXPECT_LE(found, said + 1);
    EXPECT_EQ(contents->cluster.epoch, 2u);
    ExpectWholeChange(*contents, found);
    most = std::max(most, found);
  }
  EXPECT_GT(most, 1u);  // the kills did not all come at the start
}

}  // namespace
}  // namespace trunkline::coordinator
