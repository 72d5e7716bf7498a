#include "coordinator/sqlite_database.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trunkline::coordinator {
namespace {

// A predecessor that is being stopped gets so long to let go of the file.
constexpr int kBusyTimeoutMs = 2000;

absl::Status ToStatus(int code, const std::string& path, sqlite3* database) {
  const std::string message = absl::StrCat(
      "state file ", path, ": ",
      database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code));
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(
          absl::StrCat(message, "; another coordinator has it open"));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return absl::PermissionDeniedError(message);
    case SQLITE_CANTOPEN:
      return absl::NotFoundError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

SqliteStatement& SqliteStatement::Bind(uint64_t value) {
  // SQLite has signed integers only; the bits are what counts.
  Note(sqlite3_bind_int64(statement_.get(), ++parameter_,
                          static_cast<sqlite3_int64>(value)));
  return *this;
}

SqliteStatement& SqliteStatement::Bind(double value) {
  Note(sqlite3_bind_double(statement_.get(), ++parameter_, value));
  return *this;
}

SqliteStatement& SqliteStatement::Bind(const std::string& value) {
  Note(sqlite3_bind_text64(statement_.get(), ++parameter_, value.data(),
                           value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  return *this;
}

absl::StatusOr<bool> SqliteStatement::Step() {
  if (!status_.ok()) return status_;
  column_ = 0;
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return ToStatus(code, path_, database_);
}

absl::Status SqliteStatement::Run() {
  TL_ASSIGN_OR_RETURN(bool row, Step());
  while (row) {
    TL_ASSIGN_OR_RETURN(row, Step());
  }
  return absl::OkStatus();
}

uint64_t SqliteStatement::Unsigned() {
  return static_cast<uint64_t>(
      sqlite3_column_int64(statement_.get(), column_++));
}

double SqliteStatement::Real() {
  return sqlite3_column_double(statement_.get(), column_++);
}

std::string SqliteStatement::Text() {
  const int column = column_++;
  const unsigned char* text = sqlite3_column_text(statement_.get(), column);
  const int bytes = sqlite3_column_bytes(statement_.get(), column);
  if (text == nullptr) return "";
  return std::string(reinterpret_cast<const char*>(text),
                     static_cast<size_t>(bytes));
}

void SqliteStatement::Note(int code) {
  if (code != SQLITE_OK && status_.ok()) {
    status_ = ToStatus(code, path_, database_);
  }
}

absl::StatusOr<SqliteDatabase> SqliteDatabase::Open(const std::string& path) {
  SqliteDatabase database;
  database.path_ = path;
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &handle,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX,
      nullptr);
  database.database_.reset(handle);
  if (code != SQLITE_OK) return ToStatus(code, path, handle);
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  return database;
}

absl::StatusOr<SqliteStatement> SqliteDatabase::Prepare(const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const int code =
      sqlite3_prepare_v2(database_.get(), sql, -1, &statement, nullptr);
  if (code != SQLITE_OK) return ToStatus(code, path_, database_.get());
  return SqliteStatement(database_.get(), path_, statement);
}

absl::Status SqliteDatabase::Execute(const char* sql) {
  const int code =
      sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus()
                           : ToStatus(code, path_, database_.get());
}

}  // namespace trunkline::coordinator
