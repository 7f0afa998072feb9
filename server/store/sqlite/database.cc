#include "server/store/sqlite/database.h"

#include "absl/strings/str_cat.h"

namespace mp {
namespace {

absl::Status ErrorOf(sqlite3* database, int code) {
  const std::string message = absl::StrCat("SQLite: ", sqlite3_errmsg(database));
  switch (code & 0xFF) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

Statement& Statement::Bind(int64_t value) {
  bind_result_ |= sqlite3_bind_int64(statement_.get(), next_++, value);
  return *this;
}

Statement& Statement::Bind(double value) {
  bind_result_ |= sqlite3_bind_double(statement_.get(), next_++, value);
  return *this;
}

Statement& Statement::BindText(std::string_view value) {
  bind_result_ |=
      sqlite3_bind_text64(statement_.get(), next_++, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  return *this;
}

Statement& Statement::BindBlob(std::string_view value) {
  bind_result_ |= sqlite3_bind_blob64(statement_.get(), next_++, value.data(), value.size(), SQLITE_TRANSIENT);
  return *this;
}

absl::Status Statement::Error() const {
  sqlite3* database = sqlite3_db_handle(statement_.get());
  return ErrorOf(database, sqlite3_extended_errcode(database));
}

absl::StatusOr<bool> Statement::Step() {
  if (bind_result_ != SQLITE_OK) return absl::InternalError("SQLite: an argument could not be bound");
  switch (sqlite3_step(statement_.get())) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      return false;
    default:
      return Error();
  }
}

absl::Status Statement::Run() {
  const absl::StatusOr<bool> row = Step();
  Reset();
  return row.status();
}

void Statement::Reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
  next_ = 1;
  bind_result_ = SQLITE_OK;
}

std::string Statement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), static_cast<size_t>(size));
}

absl::StatusOr<Database> Database::Open(const std::string& path, const std::string& synchronous) {
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(raw);
  if (code != SQLITE_OK)
    return absl::Status(ErrorOf(raw, code).code(), absl::StrCat(path, ": ", ErrorOf(raw, code).message()));
  sqlite3_busy_timeout(raw, 5000);
  for (const std::string& pragma :
       {std::string("PRAGMA journal_mode=WAL"), absl::StrCat("PRAGMA synchronous=", synchronous)}) {
    if (absl::Status status = database.Execute(pragma); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
    }
  }
  absl::StatusOr<Statement> mode = database.Prepare("PRAGMA journal_mode");
  absl::StatusOr<Statement> level = database.Prepare("PRAGMA synchronous");
  if (!mode.ok()) return mode.status();
  if (!level.ok()) return level.status();
  const int64_t wanted = synchronous == "FULL" ? 2 : 1;
  if (!mode->Step().value_or(false) || mode->Bytes(0) != "wal" || !level->Step().value_or(false) ||
      level->Integer(0) != wanted) {
    return absl::InternalError(
        absl::StrCat(path, ": WAL mode with synchronous=", synchronous, " can't be had on this file system"));
  }
  return database;
}

absl::Status Database::Execute(const std::string& sql) {
  const int code = sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : ErrorOf(database_.get(), code);
}

absl::StatusOr<Statement> Database::Prepare(const std::string& sql) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v2(database_.get(), sql.c_str(), static_cast<int>(sql.size()), &raw, nullptr);
  if (code != SQLITE_OK) return ErrorOf(database_.get(), code);
  return Statement(raw);
}

}  // namespace mp
