// What the controller says, and what is answered.
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "worker/agent/agent.h"
#include "worker/agent/file_check.h"

namespace mp::agent {

v1::Register Agent::MakeRegister() {
  v1::Register message;
  message.set_node_name(options_.node_name);
  message.set_instance_id(instance_id_);
  message.set_node_class(devices_.node_class);
  for (const v1::Device& device : devices_.devices) *message.add_devices() = device;
  for (const auto& [key, value] : options_.labels) (*message.mutable_labels())[key] = value;
  message.set_address(options_.address);
  message.set_worker_version(MP_VERSION);
  const absl::MutexLock lock(&mutex_);
  for (const auto& [key, attempt] : attempts_) {
    v1::HeldAttempt* held = message.add_held();
    *held->mutable_id() = attempt.prepare.id();
    held->set_ended(attempt.ended);
    held->set_launched(attempt.launched);
    for (const auto& rank : attempt.ranks) {
      v1::RankState* state = held->add_ranks();
      state->set_rank(rank->rank);
      state->set_pid(rank->pid);
      if (rank->exited) *state->mutable_exited() = *rank->exited;
    }
  }
  return message;
}

void Agent::Receive(const v1::ControllerMessage& message) {
  const absl::MutexLock lock(&mutex_);
  switch (message.message_case()) {
    case v1::ControllerMessage::kRegistered:
      return OnRegistered(message.registered());
    case v1::ControllerMessage::kHeartbeatAck:
      last_ack_ = MonotonicNow();
      return;
    case v1::ControllerMessage::kPrepareAttempt:
      return OnPrepare(message.prepare_attempt());
    case v1::ControllerMessage::kLaunchAttempt:
      return OnLaunch(message.launch_attempt());
    case v1::ControllerMessage::kStopAttempt: {
      const auto& grace = message.stop_attempt().grace();
      return OnStop(message.stop_attempt().id(), absl::Seconds(grace.seconds()) + absl::Nanoseconds(grace.nanos()));
    }
    case v1::ControllerMessage::kCheckpointAnswer:
      return OnCheckpointAnswer(message.checkpoint_answer());
    case v1::ControllerMessage::kForgetAttempt:
      return OnForget(message.forget_attempt().id());
    default:
      return;
  }
}

void Agent::OnRegistered(const v1::Registered& message) {
  using google::protobuf::util::TimeUtil;
  lease_ = absl::Nanoseconds(TimeUtil::DurationToNanoseconds(message.lease()));
  heartbeat_interval_ = absl::Nanoseconds(TimeUtil::DurationToNanoseconds(message.heartbeat_interval()));
  last_ack_ = MonotonicNow();
  next_heartbeat_ = last_ack_ + heartbeat_interval_;
  registered_ = true;
  spdlog::info("registered as {} with {}", options_.node_name, options_.controller);
  std::set<Key> keep;
  for (const v1::AttemptId& id : message.keep()) keep.insert(KeyOf(id));
  for (auto& [key, attempt] : attempts_) {
    if (!keep.contains(key)) {
      StopAttempt(&attempt, absl::ZeroDuration());
      continue;
    }
    // What was on its way when the connection broke.
    if (attempt.prepared && !attempt.launched) {
      v1::WorkerMessage answer;
      *answer.mutable_prepared() = *attempt.prepared;
      Send(answer);
    }
    for (const auto& rank : attempt.ranks) {
      if (rank->question) AskCheckpoint(attempt, *rank);
    }
  }
  if (!registered_once_ && options_.on_registered) options_.on_registered();
  registered_once_ = true;
}

void Agent::OnPrepare(const v1::PrepareAttempt& message) {
  const Key key = KeyOf(message.id());
  if (stopping_ || never_start_.contains(key)) return;
  if (const Attempt* known = Find(message.id()); known != nullptr) {
    if (!known->prepared) return;
    v1::WorkerMessage answer;
    *answer.mutable_prepared() = *known->prepared;
    return Send(answer);
  }
  // A lower attempt of the job that is still here has been given up.
  for (auto& [other, attempt] : attempts_) {
    if (other.first == key.first && other.second < key.second) StopAttempt(&attempt, absl::ZeroDuration());
  }
  Attempt& attempt = attempts_[key];
  attempt.prepare = message;
  attempt.directory = absl::StrCat(options_.data_dir, "/attempts/", key.first, "-", key.second);
  checks_.push_back([this, message, key] {
    std::vector<v1::PrepareError> errors = CheckFiles(message, options_.node_name, options_.trainer);
    Post([this, key, errors = std::move(errors)]() mutable {
      const absl::MutexLock lock(&mutex_);
      OnChecked(key, std::move(errors));
    });
  });
}

void Agent::OnChecked(const Key& key, std::vector<v1::PrepareError> errors) {
  const auto it = attempts_.find(key);
  if (it == attempts_.end() || it->second.stopping) return;
  Attempt& attempt = it->second;
  v1::Prepared prepared;
  *prepared.mutable_id() = attempt.prepare.id();
  if (attempt.prepare.hosts_rendezvous()) {
    absl::StatusOr<RendezvousSocket> socket = ListenForRendezvous(options_.address);
    if (socket.ok()) {
      attempt.rendezvous = *std::move(socket);
      prepared.set_rendezvous_address(options_.address);
      prepared.set_rendezvous_port(attempt.rendezvous.port);
    } else {
      v1::PrepareError& error = errors.emplace_back();
      error.set_cause(v1::END_CAUSE_START_FAILED);
      error.set_message(absl::StrCat("host ", options_.node_name, ": ", socket.status().message()));
    }
  }
  for (v1::PrepareError& error : errors) *prepared.add_errors() = std::move(error);
  attempt.prepared = prepared;
  v1::WorkerMessage message;
  *message.mutable_prepared() = std::move(prepared);
  Send(message);
}

void Agent::OnLaunch(const v1::LaunchAttempt& message) {
  Attempt* attempt = Find(message.id());
  if (attempt == nullptr || attempt->launched || attempt->stopping || stopping_) return;
  attempt->launched = true;
  absl::Status status;
  for (int local = 0; local < attempt->prepare.placement().ranks() && status.ok(); ++local) {
    status = StartRank(attempt, message, local);
  }
  attempt->rendezvous.fd.Close();  // rank 0 has it
  if (status.ok()) return;
  spdlog::error("job {}: {}", message.id().job(), std::string(status.message()));
  v1::WorkerMessage failed;
  auto* exited = failed.mutable_rank_exited();
  *exited->mutable_id() = message.id();
  exited->set_rank(attempt->prepare.placement().first_rank() + static_cast<int>(attempt->ranks.size()));
  exited->set_exit_code(127);
  exited->set_cause(v1::END_CAUSE_START_FAILED);
  exited->set_message(absl::StrCat("host ", options_.node_name, ": ", status.message()));
  Send(failed);
}

void Agent::OnStop(const v1::AttemptId& id, absl::Duration grace) {
  Attempt* attempt = Find(id);
  if (attempt != nullptr) return StopAttempt(attempt, grace);
  never_start_.insert(KeyOf(id));
  v1::WorkerMessage message;
  *message.mutable_attempt_ended()->mutable_id() = id;
  Send(message);
}

void Agent::OnCheckpointAnswer(const v1::CheckpointAnswer& answer) {
  Attempt* attempt = Find(answer.id());
  if (attempt == nullptr) return;
  for (const auto& rank : attempt->ranks) {
    if (!rank->question || rank->question->step() != answer.permission().step() || !rank->command.valid()) continue;
    v1::TrainerCommand command;
    *command.mutable_checkpoint_permission() = answer.permission();
    google::protobuf::util::JsonPrintOptions print;
    print.preserve_proto_field_names = true;
    print.always_print_primitive_fields = true;
    std::string line;
    if (!google::protobuf::util::MessageToJsonString(command, &line, print).ok()) continue;
    line += "\n";
    // A line is far smaller than a pipe's buffer, and the rank waits for it.
    if (write(rank->command.get(), line.data(), line.size()) < 0)
      spdlog::warn("rank {} takes no commands: {}", rank->rank, std::generic_category().message(errno));
    rank->question.reset();
  }
}

void Agent::AskCheckpoint(const Attempt& attempt, const Rank& rank) {
  v1::WorkerMessage message;
  auto* question = message.mutable_checkpoint_question();
  *question->mutable_id() = attempt.prepare.id();
  *question->mutable_request() = *rank.question;
  Send(message);
}

void Agent::OnForget(const v1::AttemptId& id) {
  never_start_.erase(KeyOf(id));
  Attempt* attempt = Find(id);
  if (attempt == nullptr || !attempt->ended) return;
  std::error_code error;
  std::filesystem::remove_all(attempt->directory, error);
  attempts_.erase(KeyOf(id));
}

}  // namespace mp::agent
