#include "server/telemetry/metric_store.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "server/telemetry/series.h"

namespace mp {
namespace {

constexpr char kSchema[] = R"sql(
    CREATE TABLE IF NOT EXISTS frames (
      job_uid TEXT NOT NULL, sequence INTEGER NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
      step INTEGER NOT NULL, time REAL NOT NULL, kind INTEGER NOT NULL, record BLOB NOT NULL,
      PRIMARY KEY (job_uid, sequence)) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS frames_by_rank ON frames (job_uid, rank, attempt, step);
    CREATE TABLE IF NOT EXISTS positions (
      job_uid TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL, sequence INTEGER NOT NULL,
      PRIMARY KEY (job_uid, attempt, rank)) WITHOUT ROWID;
)sql";
constexpr int64_t kFrame = 0;
constexpr int64_t kEvaluation = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<MetricStore>> MetricStore::Open(const std::string& path) {
  absl::StatusOr<Database> database = Database::Open(path, "NORMAL");
  if (!database.ok()) return database.status();
  if (absl::Status status = database->Execute(kSchema); !status.ok()) return status;
  return std::unique_ptr<MetricStore>(
      new MetricStore(*std::move(database)));  // NOLINT(cppcoreguidelines-owning-memory): private constructor
}

absl::StatusOr<int64_t> MetricStore::PositionLocked(const std::string& job_uid, int attempt, int rank) {
  absl::StatusOr<Statement> statement =
      database_.Prepare("SELECT sequence FROM positions WHERE job_uid = ? AND attempt = ? AND rank = ?");
  if (!statement.ok()) return statement.status();
  const absl::StatusOr<bool> row = statement->BindText(job_uid).Bind(int64_t{attempt}).Bind(int64_t{rank}).Step();
  if (!row.ok()) return row.status();
  return *row ? statement->Integer(0) : 0;
}

absl::StatusOr<int64_t> MetricStore::Position(const std::string& job_uid, int attempt, int rank) {
  const absl::MutexLock lock(&mutex_);
  return PositionLocked(job_uid, attempt, rank);
}

absl::Status MetricStore::Insert(const std::string& job_uid, int attempt, int rank, const v1::TrainerEvent& event) {
  const bool is_frame = event.has_frame();
  if (!is_frame && !event.has_evaluation()) return absl::OkStatus();
  absl::StatusOr<Statement> statement = database_.Prepare(
      "INSERT INTO frames SELECT ?1, COALESCE(MAX(sequence), 0) + 1, ?2, ?3, ?4, ?5, ?6, ?7 FROM frames WHERE job_uid "
      "= ?1");
  if (!statement.ok()) return statement.status();
  statement->BindText(job_uid).Bind(int64_t{attempt}).Bind(int64_t{rank});
  statement->Bind(is_frame ? event.frame().step() : event.evaluation().step()).Bind(event.time());
  statement->Bind(is_frame ? kFrame : kEvaluation);
  statement->BindBlob(is_frame ? event.frame().SerializeAsString() : event.evaluation().SerializeAsString());
  return statement->Run();
}

absl::Status MetricStore::Append(const std::string& job_uid, int attempt, int rank, int64_t first_sequence,
                                 const std::vector<v1::TrainerEvent>& events) {
  const absl::MutexLock lock(&mutex_);
  const absl::StatusOr<int64_t> position = PositionLocked(job_uid, attempt, rank);
  if (!position.ok()) return position.status();
  if (first_sequence > *position + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("events up to ", *position, " are stored; ", first_sequence, " leaves a gap"));
  }
  const int64_t last = first_sequence + static_cast<int64_t>(events.size()) - 1;
  if (last <= *position) return absl::OkStatus();
  return database_.InTransaction([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (size_t i = static_cast<size_t>(*position + 1 - first_sequence); i < events.size(); ++i) {
      if (absl::Status status = Insert(job_uid, attempt, rank, events[i]); !status.ok()) return status;
    }
    absl::StatusOr<Statement> statement = database_.Prepare("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)");
    if (!statement.ok()) return statement.status();
    return statement->BindText(job_uid).Bind(int64_t{attempt}).Bind(int64_t{rank}).Bind(last).Run();
  });
}

absl::StatusOr<v1::QueryMetricsResponse> MetricStore::Query(const std::string& job_uid,
                                                            const v1::QueryMetricsRequest& request) {
  const absl::MutexLock lock(&mutex_);
  SeriesBuilder builder(request);
  absl::StatusOr<Statement> statement = database_.Prepare(
      "SELECT rank, kind, record FROM frames WHERE job_uid = ?1 AND (?2 = -1 OR rank = ?2) AND step >= ?3 AND step <= "
      "?4 ORDER BY rank, attempt, step");
  if (!statement.ok()) return statement.status();
  statement->BindText(job_uid).Bind(int64_t{request.rank()}).Bind(request.first_step());
  statement->Bind(request.last_step() > 0 ? request.last_step() : std::numeric_limits<int64_t>::max());
  absl::StatusOr<bool> row;
  while ((row = statement->Step()).ok() && *row) {
    const int rank = static_cast<int>(statement->Integer(0));
    if (statement->Integer(1) == kFrame) {
      v1::Frame frame;
      if (frame.ParseFromString(statement->Bytes(2))) builder.AddFrame(rank, frame);
    } else {
      v1::Evaluation evaluation;
      if (evaluation.ParseFromString(statement->Bytes(2))) builder.AddEvaluation(rank, evaluation);
    }
  }
  if (!row.ok()) return row.status();
  return builder.Build();
}

absl::StatusOr<std::vector<v1::StoredFrame>> MetricStore::FramesAfter(const std::string& job_uid, int64_t after,
                                                                      int rank, int limit) {
  const absl::MutexLock lock(&mutex_);
  absl::StatusOr<Statement> statement = database_.Prepare(
      "SELECT sequence, attempt, rank, time, record FROM frames WHERE job_uid = ?1 AND sequence > ?2 AND kind = 0 AND "
      "(?3 = -1 OR rank = ?3) ORDER BY sequence LIMIT ?4");
  if (!statement.ok()) return statement.status();
  statement->BindText(job_uid).Bind(after).Bind(int64_t{rank}).Bind(int64_t{limit});
  std::vector<v1::StoredFrame> frames;
  absl::StatusOr<bool> row;
  while ((row = statement->Step()).ok() && *row) {
    v1::StoredFrame& frame = frames.emplace_back();
    frame.set_sequence(statement->Integer(0));
    frame.set_attempt(static_cast<int>(statement->Integer(1)));
    frame.set_rank(static_cast<int>(statement->Integer(2)));
    frame.set_time(statement->Double(3));
    if (!frame.mutable_frame()->ParseFromString(statement->Bytes(4)))
      return absl::DataLossError("a stored frame can't be read");
  }
  if (!row.ok()) return row.status();
  return frames;
}

absl::StatusOr<int64_t> MetricStore::LastSequence(const std::string& job_uid) {
  const absl::MutexLock lock(&mutex_);
  absl::StatusOr<Statement> statement =
      database_.Prepare("SELECT COALESCE(MAX(sequence), 0) FROM frames WHERE job_uid = ?");
  if (!statement.ok()) return statement.status();
  const absl::StatusOr<bool> row = statement->BindText(job_uid).Step();
  if (!row.ok()) return row.status();
  return statement->Integer(0);
}

}  // namespace mp
