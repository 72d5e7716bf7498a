#pragma once

// SQLite's handles as values with owners, and its errors as Status. For
// store_sqlite.cc alone.

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trunkline::coordinator {

// One prepared statement. Parameters are bound in order, columns read in order.
// The first error is kept and returned by the next Step.
class SqliteStatement {
 public:
  SqliteStatement(SqliteStatement&&) = default;
  SqliteStatement& operator=(SqliteStatement&&) = default;

  SqliteStatement& Bind(uint64_t value);
  SqliteStatement& Bind(double value);
  SqliteStatement& Bind(const std::string& value);
  // True: a row is there. False: done.
  absl::StatusOr<bool> Step();
  // For statements without rows.
  absl::Status Run();

  uint64_t Unsigned();
  double Real();
  std::string Text();

 private:
  friend class SqliteDatabase;
  struct Finalizer {
    void operator()(sqlite3_stmt* statement) const {
      sqlite3_finalize(statement);
    }
  };
  SqliteStatement(sqlite3* database, const std::string& path,
                  sqlite3_stmt* statement)
      : database_(database), path_(path), statement_(statement) {}
  void Note(int code);

  sqlite3* database_;
  std::string path_;
  std::unique_ptr<sqlite3_stmt, Finalizer> statement_;
  absl::Status status_;
  int parameter_ = 0;
  int column_ = 0;
};

class SqliteDatabase {
 public:
  static absl::StatusOr<SqliteDatabase> Open(const std::string& path);
  absl::StatusOr<SqliteStatement> Prepare(const char* sql);
  absl::Status Execute(const char* sql);
  int rows_changed() const { return sqlite3_changes(database_.get()); }
  const std::string& path() const { return path_; }

 private:
  struct Closer {
    void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
  };
  SqliteDatabase() = default;
  std::string path_;
  std::unique_ptr<sqlite3, Closer> database_;
};

}  // namespace trunkline::coordinator
