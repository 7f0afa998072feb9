// The controller's core: jobs, nodes and gangs under one lock. API calls, workers' messages and the clock come in;
// messages to workers and durable changes go out. Every change of state is in the store before anything that follows
// from it is sent.
//
// It does no network I/O and starts no thread: sessions are handed in, the clock too, and somebody calls Tick at
// NextDeadline. So a test can drive it through days of cluster life with a clock of its own.
//
// Thread-safety: any thread may call any method.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "mp/v1/job_service.pb.h"
#include "mp/v1/node_service.pb.h"
#include "mp/v1/worker_service.pb.h"
#include "server/fleet/gang.h"
#include "server/fleet/worker_session.h"
#include "server/store/store.h"

namespace mp {

struct CoordinatorOptions {
  absl::Duration lease = absl::Seconds(60);
  absl::Duration heartbeat_interval = absl::Seconds(5);
  absl::Duration start_timeout = absl::Seconds(120);
  absl::Duration stop_grace = absl::Seconds(5);
  // A worker whose lease has run out has this long to kill its ranks before its devices count as free.
  absl::Duration kill_grace = absl::Seconds(5);
  // Against which relative paths of specs are resolved; empty: the submitter's directory.
  std::string shared_root;
};

struct Clock {
  std::function<absl::Time()> wall;           // for records
  std::function<absl::Duration()> monotonic;  // for leases and timeouts
};

// What metrics and logs need to know of a job.
struct JobIdentity {
  std::string uid;
  std::string name;
  int attempt = 0;
  int world_size = 1;
  bool is_final = false;
};

class Coordinator {
 public:
  // `store` is not owned. `on_change` is called, under the lock, with a job's name after each durable change or end; it
  // must not call back. It may be empty.
  Coordinator(Store* store, CoordinatorOptions options, Clock clock, std::function<void(const std::string&)> on_change);

  // Loads the store and honours the leases that an earlier controller gave. Call once, first.
  absl::Status Start();

  // -- API; errors as job_service.proto names them
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request);
  absl::StatusOr<v1::Job> GetJob(const std::string& name);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> CancelJob(const v1::CancelJobRequest& request);
  absl::StatusOr<std::vector<v1::JobEvent>> Events(const std::string& name, int64_t after, int limit);
  absl::StatusOr<v1::ListNodesResponse> ListNodes(const v1::ListNodesRequest& request);
  absl::StatusOr<JobIdentity> FindJob(const std::string& name);
  // All jobs and nodes, for gauges.
  std::vector<v1::Job> AllJobs();
  std::vector<v1::Node> AllNodes();

  // -- workers
  // First message of a stream. ALREADY_EXISTS: another live worker has the name.
  absl::Status Register(const std::shared_ptr<WorkerSession>& session, const v1::Register& message);
  void Receive(const std::shared_ptr<WorkerSession>& session, const v1::WorkerMessage& message);
  void Disconnected(const std::shared_ptr<WorkerSession>& session);
  // Whether logs and events of this rank are taken: the attempt is the newest of its job and has the rank.
  bool Accepts(const v1::AttemptId& id, int rank);
  // Events of a rank, in order, each once; INTERNAL or RESOURCE_EXHAUSTED when they could not be stored.
  absl::Status RankEvents(const v1::AttemptId& id, int rank, const std::vector<v1::TrainerEvent>& events);

  // -- the clock
  void Tick();
  // Monotonic time at which Tick is due.
  absl::Duration NextDeadline();

 private:
  struct NodeState {
    v1::Node record;
    std::string instance_id;
    std::shared_ptr<WorkerSession> session;      // null: not connected
    absl::Duration lease_end;                    // monotonic, kill grace included
    std::set<std::pair<std::string, int>> left;  // (job uid, attempt) that still end there
  };

  // coordinator.cc
  v1::Job* FindByName(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::JobEvent MakeEvent(const v1::Job& job, v1::JobEvent::Type type, const std::string& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Commits the job with these events; on success it is the new truth.
  absl::Status Write(const v1::Job& job, std::vector<v1::JobEvent> events, bool with_attempt,
                     const std::string& request_id = "") ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ChangeState(const std::string& uid, v1::Job::State to, v1::EndCause cause, const std::string& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOutputDirectory(const v1::Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // placement.cc
  void PlaceJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartAttempt(std::string uid, const std::vector<v1::Placement>& placements)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendPrepare(const Gang& gang, const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendLaunch(const Gang& gang, const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendStop(const Gang& gang, const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendForget(const v1::AttemptId& id, const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(const std::string& node, const v1::ControllerMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // gang.cc
  Gang* FindGang(const v1::AttemptId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetCause(Gang* gang, v1::EndCause cause, const std::string& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does what the gang's state calls for; may erase it.
  void Advance(const std::string& uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishAttempt(const std::string& uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnPrepared(const std::string& node, const v1::Prepared& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRankExited(Gang* gang, const v1::RankExited& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAttemptEnded(const std::string& node, const v1::AttemptId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnCheckpointQuestion(const std::string& node, const v1::CheckpointQuestion& question)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MemberLost(const std::string& node, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // registration.cc
  void Reconcile(NodeState* node, const v1::Register& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsHeldElsewhere(const NodeState& node, const v1::Register& message) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireLeases(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store* const store_;
  const CoordinatorOptions options_;
  const Clock clock_;
  const std::function<void(const std::string&)> on_change_;

  absl::Mutex mutex_;
  std::map<std::string, v1::Job> jobs_ ABSL_GUARDED_BY(mutex_);  // by uid, with attempts
  std::vector<std::string> order_ ABSL_GUARDED_BY(mutex_);       // uids, oldest first
  std::map<std::string, std::string> uid_by_name_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> uid_by_request_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> last_event_ ABSL_GUARDED_BY(mutex_);  // by uid
  std::map<std::string, NodeState> nodes_ ABSL_GUARDED_BY(mutex_);     // by name
  std::map<std::string, Gang> gangs_ ABSL_GUARDED_BY(mutex_);          // by job uid
  absl::Duration recovery_end_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  bool retry_ ABSL_GUARDED_BY(mutex_) = false;  // a write failed: try again soon
};

}  // namespace mp
