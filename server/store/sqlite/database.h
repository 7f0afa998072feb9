// SQLite with RAII: a connection in WAL mode, statements, transactions. Errors are absl::Status with SQLite's message.
//
// Thread-safety: none of its own; owners guard it.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace mp {

class Statement {
 public:
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}

  Statement& Bind(int64_t value);
  Statement& Bind(double value);
  Statement& BindText(std::string_view value);
  Statement& BindBlob(std::string_view value);
  // True while there is a row; the arguments are bound once, before the first call.
  absl::StatusOr<bool> Step();
  // Runs a statement that returns no rows, and makes it ready to be bound again.
  absl::Status Run();
  // Forgets rows and arguments.
  void Reset();

  int64_t Integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  double Double(int column) const { return sqlite3_column_double(statement_.get(), column); }
  std::string Bytes(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  absl::Status Error() const;

  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int next_ = 1;
  int bind_result_ = SQLITE_OK;
};

class Database {
 public:
  // `synchronous`: FULL or NORMAL; set and read back, as journal mode WAL is.
  static absl::StatusOr<Database> Open(const std::string& path, const std::string& synchronous);

  absl::Status Execute(const std::string& sql);
  absl::StatusOr<Statement> Prepare(const std::string& sql);
  // Runs `work` between BEGIN IMMEDIATE and COMMIT; rolls back when it fails.
  template <typename F>
  absl::Status InTransaction(F&& work) {
    if (absl::Status status = Execute("BEGIN IMMEDIATE"); !status.ok()) return status;
    absl::Status status = work();
    if (status.ok()) status = Execute("COMMIT");
    if (!status.ok()) Execute("ROLLBACK").IgnoreError();
    return status;
  }

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
  };
  explicit Database(sqlite3* database) : database_(database) {}

  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace mp
