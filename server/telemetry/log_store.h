// The output of ranks, one file for each rank of each attempt: DATA_DIR/logs/JOB_UID/attempt-N/rank-R.log.
//
// Append returns after write(2): what it acknowledged survives the end of the process. Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace mp {

class LogStore {
 public:
  explicit LogStore(std::string directory) : directory_(std::move(directory)) {}

  // Bytes stored of this rank's output.
  absl::StatusOr<int64_t> Size(const std::string& job_uid, int attempt, int rank);
  // Writes data at `offset` as far as it is new; returns the bytes stored afterwards. An offset beyond them stores
  // nothing.
  absl::StatusOr<int64_t> Append(const std::string& job_uid, int attempt, int rank, int64_t offset,
                                 const std::string& data);
  // At most `limit` bytes from `offset`; empty at the end.
  absl::StatusOr<std::string> Read(const std::string& job_uid, int attempt, int rank, int64_t offset, int64_t limit);
  // Offset at which the last `lines` lines begin; reads from the end.
  absl::StatusOr<int64_t> TailOffset(const std::string& job_uid, int attempt, int rank, int lines);

 private:
  std::string Path(const std::string& job_uid, int attempt, int rank) const;

  const std::string directory_;
  absl::Mutex mutex_;  // one writer at a time
};

}  // namespace mp
