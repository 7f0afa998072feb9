// The full series that ranks report, on disk.
//
// Append returns after SQLite has handed the rows to the operating system (WAL, synchronous=NORMAL): they survive the
// end of the process by any signal. A power failure may lose the newest of them, and never damages the others; FULL
// would cost a disk sync a batch and is kept for jobs' states.
//
// Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "mp/v1/metrics_service.pb.h"
#include "mp/v1/trainer.pb.h"
#include "server/store/sqlite/database.h"

namespace mp {

class MetricStore {
 public:
  static absl::StatusOr<std::unique_ptr<MetricStore>> Open(const std::string& path);

  // Highest event sequence stored of a rank's attempt, 0 for none.
  absl::StatusOr<int64_t> Position(const std::string& job_uid, int attempt, int rank);
  // Stores frames and evaluations of `events`, whose first has sequence `first_sequence`, and moves the position.
  // Events at or below the position are left out. FAILED_PRECONDITION where events are missing in between.
  absl::Status Append(const std::string& job_uid, int attempt, int rank, int64_t first_sequence,
                      const std::vector<v1::TrainerEvent>& events);

  absl::StatusOr<v1::QueryMetricsResponse> Query(const std::string& job_uid, const v1::QueryMetricsRequest& request);
  // Frames with a higher sequence, oldest first, at most `limit`. rank -1: all.
  absl::StatusOr<std::vector<v1::StoredFrame>> FramesAfter(const std::string& job_uid, int64_t after, int rank,
                                                           int limit);
  // Highest sequence of the job's frames, 0 for none.
  absl::StatusOr<int64_t> LastSequence(const std::string& job_uid);

 private:
  explicit MetricStore(Database database) : database_(std::move(database)) {}
  absl::StatusOr<int64_t> PositionLocked(const std::string& job_uid, int attempt, int rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Insert(const std::string& job_uid, int attempt, int rank, const v1::TrainerEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  Database database_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace mp
