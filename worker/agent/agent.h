// mp-worker's core: attempts and their ranks on this host, driven by one loop.
//
// The loop's thread starts and reaps processes, reads their pipes, and decides; the session's and the shippers' threads
// hand it work. It holds no policy: what runs is the controller's decision, and an attempt that the controller does not
// know any more is ended.
//
// Thread-safety: Run on one thread; everything else from any.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "mp/v1/worker_service.grpc.pb.h"
#include "worker/agent/devices.h"
#include "worker/agent/rank.h"
#include "worker/agent/session.h"
#include "worker/agent/shipper.h"

namespace mp::agent {

struct AgentOptions {
  std::string controller;  // HOST:PORT
  std::string data_dir;
  std::string node_name;
  std::string address;         // under which other hosts reach this one's ranks
  std::string gloo_interface;  // empty: by the route to the master
  std::string trainer;         // path of mp-trainer
  std::string launcher;        // path of mp-rank-launcher
  std::map<std::string, std::string> labels;
  std::function<void()> on_registered;  // once, on the loop's thread
};

class Agent {
 public:
  Agent(AgentOptions options, HostDevices devices);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Ends what an earlier worker on this data directory left, then works until Stop. OK after Stop; an error where the
  // controller refuses this worker for good. SIGCHLD must be blocked in every thread.
  absl::Status Run();
  // Ends the ranks (SIGTERM, then SIGKILL), tells the controller, and makes Run return.
  void Stop();

 private:
  using Key = std::pair<std::string, int>;  // job uid, attempt
  struct Attempt {
    v1::PrepareAttempt prepare;
    std::optional<v1::Prepared> prepared;  // the answer, for a repeated question
    RendezvousSocket rendezvous;
    bool launched = false;
    bool stopping = false;
    absl::Time kill_at = absl::InfiniteFuture();
    std::vector<std::unique_ptr<Rank>> ranks;
    bool all_gone = false;                           // no process is left
    absl::Time ship_until = absl::InfiniteFuture();  // then AttemptEnded goes out with or without the last lines
    bool ended = false;                              // AttemptEnded was sent
    std::string directory;
  };

  // agent.cc: the loop
  void Post(std::function<void()> work);
  void Loop();
  int PollTimeoutMilliseconds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnTime() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveLeftovers();

  // messages.cc: the controller's words
  v1::Register MakeRegister();
  void Receive(const v1::ControllerMessage& message);
  void OnRegistered(const v1::Registered& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnPrepare(const v1::PrepareAttempt& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnChecked(const Key& key, std::vector<v1::PrepareError> errors) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnLaunch(const v1::LaunchAttempt& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnStop(const v1::AttemptId& id, absl::Duration grace) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnCheckpointAnswer(const v1::CheckpointAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnForget(const v1::AttemptId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AskCheckpoint(const Attempt& attempt, const Rank& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // processes.cc: ranks
  absl::Status StartRank(Attempt* attempt, const v1::LaunchAttempt& launch, int local_rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopAttempt(Attempt* attempt, absl::Duration grace) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadOutput(Rank* rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadReports(Attempt* attempt, Rank* rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Spool(Rank* rank, const char* data, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Reap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnExit(Attempt* attempt, Rank* rank, int status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Kills what is left of attempts whose ranks have ended, and reports those that are gone.
  void Clear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // shipping.cc
  std::optional<v1::ShipLogsRequest> NextLogs();
  std::optional<v1::ShipEventsRequest> NextEvents();
  void LogsAcknowledged(const v1::ShipLogsResponse& response);
  void EventsAcknowledged(const v1::ShipEventsResponse& response);
  Rank* FindRank(const v1::AttemptId& id, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  static Key KeyOf(const v1::AttemptId& id) { return {id.job_uid(), id.attempt()}; }
  Attempt* Find(const v1::AttemptId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(const v1::WorkerMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AgentOptions options_;
  const HostDevices devices_;
  const std::string instance_id_;
  const std::string token_prefix_;  // of every rank that a worker on this data directory starts
  OwnedFd wake_;                    // eventfd
  OwnedFd children_;                // signalfd of SIGCHLD

  absl::Mutex mutex_;
  std::map<Key, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);
  std::set<Key> never_start_ ABSL_GUARDED_BY(mutex_);  // stopped before they were prepared
  std::deque<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  bool registered_once_ ABSL_GUARDED_BY(mutex_) = false;
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration lease_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  absl::Duration heartbeat_interval_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(5);
  absl::Time last_ack_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // monotonic
  absl::Time next_heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  int64_t heartbeat_ ABSL_GUARDED_BY(mutex_) = 0;

  // File checks may hang with the file system, so they have a thread of their own.
  std::deque<std::function<void()>> checks_ ABSL_GUARDED_BY(mutex_);
  std::thread checker_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::unique_ptr<Shipper<v1::ShipLogsRequest, v1::ShipLogsResponse>> log_shipper_;
  std::unique_ptr<Shipper<v1::ShipEventsRequest, v1::ShipEventsResponse>> event_shipper_;
  std::unique_ptr<Session> session_;
};

// Monotonic time as absl::Time, for deadlines.
absl::Time MonotonicNow();

}  // namespace mp::agent
