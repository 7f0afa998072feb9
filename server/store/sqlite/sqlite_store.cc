#include "server/store/sqlite/sqlite_store.h"

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/store/sqlite/database.h"

namespace mp {
namespace {

// Each entry brings the schema one version further; the version is SQLite's user_version.
constexpr const char* kMigrations[] = {
    R"sql(
    CREATE TABLE jobs (number INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE,
                       state INTEGER NOT NULL, record BLOB NOT NULL);
    CREATE TABLE attempts (job_uid TEXT NOT NULL, number INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (job_uid, number)) WITHOUT ROWID;
    CREATE TABLE events (job_uid TEXT NOT NULL, sequence INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (job_uid, sequence)) WITHOUT ROWID;
    CREATE TABLE nodes (name TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE requests (id TEXT PRIMARY KEY, job_uid TEXT NOT NULL, time INTEGER NOT NULL) WITHOUT ROWID;
    )sql",
};
constexpr int64_t kDaySeconds = 86400;

class SqliteStore : public Store {
 public:
  explicit SqliteStore(Database database) : database_(std::move(database)) {}

  absl::Status Migrate() {
    const absl::MutexLock lock(&mutex_);
    absl::StatusOr<Statement> version = database_.Prepare("PRAGMA user_version");
    if (!version.ok()) return version.status();
    if (absl::StatusOr<bool> row = version->Step(); !row.ok()) return row.status();
    const int64_t have = version->Integer(0);
    version->Reset();
    constexpr int64_t kWant = std::size(kMigrations);
    if (have > kWant) {
      return absl::FailedPreconditionError(absl::StrCat("the store has schema version ", have, "; this program knows ",
                                                        kWant, ": use a newer mp-controller"));
    }
    for (int64_t i = have; i < kWant; ++i) {
      absl::Status status = database_.InTransaction([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        if (absl::Status done = database_.Execute(kMigrations[i]); !done.ok()) return done;
        return database_.Execute(absl::StrCat("PRAGMA user_version=", i + 1));
      });
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Commit(const Transaction& transaction) override {
    const absl::MutexLock lock(&mutex_);
    return database_.InTransaction([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return Write(transaction); });
  }

  absl::StatusOr<StoredState> Load() override {
    const absl::MutexLock lock(&mutex_);
    StoredState state;
    absl::StatusOr<Statement> jobs = database_.Prepare("SELECT uid, record FROM jobs ORDER BY number");
    absl::StatusOr<Statement> attempts =
        database_.Prepare("SELECT record FROM attempts WHERE job_uid = ? ORDER BY number");
    absl::StatusOr<Statement> last = database_.Prepare("SELECT job_uid, MAX(sequence) FROM events GROUP BY job_uid");
    absl::StatusOr<Statement> nodes = database_.Prepare("SELECT record FROM nodes ORDER BY name");
    absl::StatusOr<Statement> requests = database_.Prepare("SELECT id, job_uid FROM requests WHERE time > ?");
    for (const auto* statement : {&jobs, &attempts, &last, &nodes, &requests}) {
      if (!statement->ok()) return statement->status();
    }
    absl::StatusOr<bool> row;
    while ((row = jobs->Step()).ok() && *row) {
      v1::Job job;
      if (!job.ParseFromString(jobs->Bytes(1))) return absl::DataLossError("the store holds a job that can't be read");
      attempts->Reset();
      attempts->BindText(jobs->Bytes(0));
      absl::StatusOr<bool> inner;
      while ((inner = attempts->Step()).ok() && *inner) {
        if (!job.add_attempts()->ParseFromString(attempts->Bytes(0)))
          return absl::DataLossError("the store holds an attempt that can't be read");
      }
      if (!inner.ok()) return inner.status();
      state.jobs.push_back(std::move(job));
    }
    if (!row.ok()) return row.status();
    while ((row = last->Step()).ok() && *row) state.last_events.emplace_back(last->Bytes(0), last->Integer(1));
    if (!row.ok()) return row.status();
    while ((row = nodes->Step()).ok() && *row) {
      v1::Node node;
      if (!node.ParseFromString(nodes->Bytes(0)))
        return absl::DataLossError("the store holds a node that can't be read");
      state.nodes.push_back(std::move(node));
    }
    if (!row.ok()) return row.status();
    requests->Bind(absl::ToUnixSeconds(absl::Now()) - kDaySeconds);
    while ((row = requests->Step()).ok() && *row) state.requests.emplace_back(requests->Bytes(0), requests->Bytes(1));
    if (!row.ok()) return row.status();
    return state;
  }

  absl::StatusOr<std::vector<v1::JobEvent>> Events(const std::string& job_uid, int64_t after, int limit) override {
    const absl::MutexLock lock(&mutex_);
    absl::StatusOr<Statement> statement =
        database_.Prepare("SELECT record FROM events WHERE job_uid = ? AND sequence > ? ORDER BY sequence LIMIT ?");
    if (!statement.ok()) return statement.status();
    statement->BindText(job_uid).Bind(after).Bind(int64_t{limit});
    std::vector<v1::JobEvent> events;
    absl::StatusOr<bool> row;
    while ((row = statement->Step()).ok() && *row) {
      if (!events.emplace_back().ParseFromString(statement->Bytes(0)))
        return absl::DataLossError("the store holds an event that can't be read");
    }
    if (!row.ok()) return row.status();
    return events;
  }

 private:
  absl::Status Write(const Transaction& transaction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const v1::Job& job : transaction.jobs) {
      v1::Job record = job;
      record.clear_attempts();
      absl::StatusOr<Statement> statement = database_.Prepare(
          "INSERT INTO jobs (uid, name, state, record) VALUES (?, ?, ?, ?) "
          "ON CONFLICT (uid) DO UPDATE SET state = excluded.state, record = excluded.record");
      if (!statement.ok()) return statement.status();
      statement->BindText(job.uid())
          .BindText(job.name())
          .Bind(static_cast<int64_t>(job.state()))
          .BindBlob(record.SerializeAsString());
      if (absl::Status status = statement->Run(); !status.ok()) return status;
    }
    for (const auto& [uid, attempt] : transaction.attempts) {
      absl::Status status =
          Put("INSERT OR REPLACE INTO attempts VALUES (?, ?, ?)", uid, attempt.number(), attempt.SerializeAsString());
      if (!status.ok()) return status;
    }
    for (const auto& [uid, event] : transaction.events) {
      absl::Status status =
          Put("INSERT INTO events VALUES (?, ?, ?)", uid, event.sequence(), event.SerializeAsString());
      if (!status.ok()) return status;
    }
    for (const v1::Node& node : transaction.nodes) {
      absl::StatusOr<Statement> statement = database_.Prepare("INSERT OR REPLACE INTO nodes VALUES (?, ?)");
      if (!statement.ok()) return statement.status();
      if (absl::Status status = statement->BindText(node.name()).BindBlob(node.SerializeAsString()).Run(); !status.ok())
        return status;
    }
    if (!transaction.request_id.empty()) {
      absl::StatusOr<Statement> statement = database_.Prepare("INSERT OR REPLACE INTO requests VALUES (?, ?, ?)");
      if (!statement.ok()) return statement.status();
      statement->BindText(transaction.request_id)
          .BindText(transaction.request_job_uid)
          .Bind(absl::ToUnixSeconds(absl::Now()));
      if (absl::Status status = statement->Run(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Put(const char* sql, const std::string& uid, int64_t number, const std::string& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::StatusOr<Statement> statement = database_.Prepare(sql);
    if (!statement.ok()) return statement.status();
    return statement->BindText(uid).Bind(number).BindBlob(record).Run();
  }

  absl::Mutex mutex_;
  Database database_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path) {
  absl::StatusOr<Database> database = Database::Open(path, "FULL");
  if (!database.ok()) return database.status();
  auto store = std::make_unique<SqliteStore>(*std::move(database));
  if (absl::Status status = store->Migrate(); !status.ok())
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  return store;
}

}  // namespace mp
