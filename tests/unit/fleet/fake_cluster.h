// A coordinator on a real store with a clock of the test's, and workers that only record what they are told.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/fleet/coordinator.h"

namespace mp {

class FakeWorker : public WorkerSession {
 public:
  void Send(const v1::ControllerMessage& message) override { inbox.push_back(message); }
  void Close(const absl::Status& status) override {
    closed = status;
    is_closed = true;
  }

  // The newest message of a kind; null when there is none.
  const v1::ControllerMessage* Last(v1::ControllerMessage::MessageCase kind) const;
  int Count(v1::ControllerMessage::MessageCase kind) const;

  std::vector<v1::ControllerMessage> inbox;
  absl::Status closed;
  bool is_closed = false;
};

class FakeCluster {
 public:
  FakeCluster();
  ~FakeCluster();

  // As a controller's kill -9 and restart.
  void RestartController();
  std::shared_ptr<FakeWorker> Connect(const std::string& node, const std::string& instance = "1",
                                      const std::vector<v1::HeldAttempt>& held = {}, int devices = 1);
  absl::Status TryConnect(const std::shared_ptr<FakeWorker>& worker, const std::string& node,
                          const std::string& instance, const std::vector<v1::HeldAttempt>& held, int devices);

  absl::StatusOr<v1::Job> Submit(const std::string& name, int nodes = 2, const std::string& more = "");
  v1::Job Get(const std::string& name);
  v1::AttemptId Id(const std::string& name);
  void Advance(absl::Duration duration);

  void Heartbeat(const std::shared_ptr<FakeWorker>& worker);
  void Prepared(const std::shared_ptr<FakeWorker>& worker, const v1::AttemptId& id, bool rendezvous,
                const std::string& error = "", v1::EndCause cause = v1::END_CAUSE_MISSING_FILE);
  void RankStarted(const std::shared_ptr<FakeWorker>& worker, const v1::AttemptId& id, int rank);
  void RankExited(const std::shared_ptr<FakeWorker>& worker, const v1::AttemptId& id, int rank, v1::EndCause cause);
  void AttemptEnded(const std::shared_ptr<FakeWorker>& worker, const v1::AttemptId& id);
  // A two-node job of a user's program all the way to RUNNING on w0 and w1.
  v1::AttemptId Run(const std::string& name, const std::shared_ptr<FakeWorker>& w0,
                    const std::shared_ptr<FakeWorker>& w1);

  Coordinator& coordinator() { return *coordinator_; }

 private:
  const std::filesystem::path folder_;
  absl::Duration monotonic_ = absl::Seconds(1000);
  absl::Time wall_ = absl::FromUnixSeconds(1764590000);
  std::unique_ptr<Store> store_;
  std::unique_ptr<Coordinator> coordinator_;
};

v1::HeldAttempt Held(const v1::AttemptId& id, int rank, bool launched = true, bool ended = false);

}  // namespace mp
