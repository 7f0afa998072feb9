// The controller's durable state: jobs, attempts, events, nodes.
//
// A Transaction is written whole or not at all and is on disk when Commit returns OK. Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "mp/v1/job.pb.h"
#include "mp/v1/node_service.pb.h"

namespace mp {

struct Transaction {
  std::vector<v1::Job> jobs;                                  // inserted or replaced, by uid; `attempts` is left out
  std::vector<std::pair<std::string, v1::Attempt>> attempts;  // (job uid, attempt), by number
  std::vector<std::pair<std::string, v1::JobEvent>> events;   // (job uid, event), appended
  std::vector<v1::Node> nodes;                                // by name
  std::string request_id;                                     // remembered for request_job_uid when not empty
  std::string request_job_uid;

  bool empty() const { return jobs.empty() && attempts.empty() && events.empty() && nodes.empty(); }
};

struct StoredState {
  std::vector<v1::Job> jobs;  // oldest first, with attempts
  std::vector<v1::Node> nodes;
  std::vector<std::pair<std::string, std::string>> requests;  // (request id, job uid) of the last day
  std::vector<std::pair<std::string, int64_t>> last_events;   // (job uid, highest event sequence)
};

class Store {
 public:
  virtual ~Store() = default;
  virtual absl::Status Commit(const Transaction& transaction) = 0;
  virtual absl::StatusOr<StoredState> Load() = 0;
  // Events of a job with a higher sequence, oldest first, at most `limit`.
  virtual absl::StatusOr<std::vector<v1::JobEvent>> Events(const std::string& job_uid, int64_t after, int limit) = 0;
};

}  // namespace mp
