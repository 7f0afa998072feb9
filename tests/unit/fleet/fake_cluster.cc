#include "tests/unit/fleet/fake_cluster.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "server/store/sqlite/sqlite_store.h"

namespace mp {
namespace {

std::filesystem::path NewFolder() {
  static std::atomic<int> count = 0;
  const auto folder =
      std::filesystem::temp_directory_path() / absl::StrCat("coordinator_test-", getpid(), "-", count++);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace

const v1::ControllerMessage* FakeWorker::Last(v1::ControllerMessage::MessageCase kind) const {
  for (auto it = inbox.rbegin(); it != inbox.rend(); ++it) {
    if (it->message_case() == kind) return &*it;
  }
  return nullptr;
}

int FakeWorker::Count(v1::ControllerMessage::MessageCase kind) const {
  return static_cast<int>(
      std::count_if(inbox.begin(), inbox.end(), [&](const auto& message) { return message.message_case() == kind; }));
}

FakeCluster::FakeCluster() : folder_(NewFolder()) { RestartController(); }

FakeCluster::~FakeCluster() {
  coordinator_.reset();
  store_.reset();
  std::filesystem::remove_all(folder_);
}

void FakeCluster::RestartController() {
  coordinator_.reset();
  store_.reset();
  absl::StatusOr<std::unique_ptr<Store>> store = OpenSqliteStore(folder_ / "controller.db");
  if (!store.ok()) throw std::runtime_error(std::string(store.status().message()));
  store_ = *std::move(store);
  coordinator_ = std::make_unique<Coordinator>(store_.get(), CoordinatorOptions{},
                                               Clock{[this] { return wall_; }, [this] { return monotonic_; }}, nullptr);
  const absl::Status status = coordinator_->Start();
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

absl::Status FakeCluster::TryConnect(const std::shared_ptr<FakeWorker>& worker, const std::string& node,
                                     const std::string& instance, const std::vector<v1::HeldAttempt>& held,
                                     int devices) {
  v1::Register message;
  message.set_node_name(node);
  message.set_instance_id(instance);
  message.set_node_class(v1::ResourceSpec::CPU);
  for (int i = 0; i < devices; ++i) message.add_devices()->set_index(i);
  for (const v1::HeldAttempt& attempt : held) *message.add_held() = attempt;
  return coordinator_->Register(worker, message);
}

std::shared_ptr<FakeWorker> FakeCluster::Connect(const std::string& node, const std::string& instance,
                                                 const std::vector<v1::HeldAttempt>& held, int devices) {
  auto worker = std::make_shared<FakeWorker>();
  const absl::Status status = TryConnect(worker, node, instance, held, devices);
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  return worker;
}

absl::StatusOr<v1::Job> FakeCluster::Submit(const std::string& name, int nodes, const std::string& more) {
  v1::CreateJobRequest request;
  request.set_spec_document(absl::StrCat("{name: ", name, ", workload: {command: [work]}, resources: {nodes: ", nodes,
                                         "}", more.empty() ? "" : ", ", more, "}"));
  return coordinator_->CreateJob(request);
}

v1::Job FakeCluster::Get(const std::string& name) { return coordinator_->GetJob(name).value(); }

v1::AttemptId FakeCluster::Id(const std::string& name) {
  const v1::Job job = Get(name);
  v1::AttemptId id;
  id.set_job_uid(job.uid());
  id.set_job(name);
  id.set_attempt(job.attempt());
  return id;
}

void FakeCluster::Advance(absl::Duration duration) {
  monotonic_ += duration;
  wall_ += duration;
  coordinator_->Tick();
}

void FakeCluster::Heartbeat(const std::shared_ptr<FakeWorker>& worker) {
  v1::WorkerMessage message;
  message.mutable_heartbeat()->set_sequence(1);
  coordinator_->Receive(worker, message);
}

void FakeCluster::Prepared(const std::shared_ptr<FakeWorker>& worker, const v1::AttemptId& id, bool rendezvous,
                           const std::string& error, v1::EndCause cause) {
  v1::WorkerMessage message;
  *message.mutable_prepared()->mutable_id() = id;
  if (rendezvous) {
    message.mutable_prepared()->set_rendezvous_address("10.0.0.1");
    message.mutable_prepared()->set_rendezvous_port(4711);
  }
  if (!error.empty()) {
    auto* added = message.mutable_prepared()->add_errors();
    added->set_cause(cause);
    added->set_message(error);
  }
  coordinator_->Receive(worker, message);
}

void FakeCluster::RankStarted(const std::shared_ptr<FakeWorker>& worker, const v1::AttemptId& id, int rank) {
  v1::WorkerMessage message;
  *message.mutable_rank_started()->mutable_id() = id;
  message.mutable_rank_started()->set_rank(rank);
  coordinator_->Receive(worker, message);
}

void FakeCluster::RankExited(const std::shared_ptr<FakeWorker>& worker, const v1::AttemptId& id, int rank,
                             v1::EndCause cause) {
  v1::WorkerMessage message;
  *message.mutable_rank_exited()->mutable_id() = id;
  message.mutable_rank_exited()->set_rank(rank);
  message.mutable_rank_exited()->set_cause(cause);
  message.mutable_rank_exited()->set_message("as the test says");
  coordinator_->Receive(worker, message);
}

void FakeCluster::AttemptEnded(const std::shared_ptr<FakeWorker>& worker, const v1::AttemptId& id) {
  v1::WorkerMessage message;
  *message.mutable_attempt_ended()->mutable_id() = id;
  coordinator_->Receive(worker, message);
}

v1::AttemptId FakeCluster::Run(const std::string& name, const std::shared_ptr<FakeWorker>& w0,
                               const std::shared_ptr<FakeWorker>& w1) {
  Submit(name).value();
  const v1::AttemptId id = Id(name);
  Prepared(w0, id, true);
  Prepared(w1, id, false);
  RankStarted(w0, id, 0);
  RankStarted(w1, id, 1);
  return id;
}

v1::HeldAttempt Held(const v1::AttemptId& id, int rank, bool launched, bool ended) {
  v1::HeldAttempt held;
  *held.mutable_id() = id;
  held.set_launched(launched);
  held.set_ended(ended);
  auto* state = held.add_ranks();
  state->set_rank(rank);
  state->set_pid(100 + rank);
  return held;
}

}  // namespace mp
