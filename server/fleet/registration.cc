// Workers come, go, and are compared with what they should run.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/time_util.h"
#include "server/api/status_details.h"
#include "server/fleet/coordinator.h"
#include "server/job/state_machine.h"

namespace mp {

using google::protobuf::util::TimeUtil;

bool Coordinator::IsHeldElsewhere(const NodeState& node, const v1::Register& message) const {
  return node.session != nullptr && node.instance_id != message.instance_id() && clock_.monotonic() < node.lease_end;
}

absl::Status Coordinator::Register(const std::shared_ptr<WorkerSession>& session, const v1::Register& message) {
  if (message.node_name().empty() || message.instance_id().empty() || message.devices().empty()) {
    return WithReason(
        absl::InvalidArgumentError("a worker registers with a node name, an instance id and at least one device"),
        "INVALID_REGISTER");
  }
  // It stands in tables, metric labels and commands.
  if (!std::ranges::all_of(message.node_name(),
                           [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; }) ||
      message.node_name().size() > 253) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat(
            "node name \"", absl::CHexEscape(message.node_name()),
            "\": letters, digits, \".\", \"_\" and \"-\" are allowed, at most 253 of them; see --node-name")),
        "INVALID_REGISTER");
  }
  const absl::MutexLock lock(&mutex_);
  const auto known = nodes_.find(message.node_name());
  if (known != nodes_.end() && IsHeldElsewhere(known->second, message)) {
    return WithReason(
        absl::AlreadyExistsError(absl::StrCat("another live worker is registered as ", message.node_name(),
                                              "; give this one another --node-name")),
        "NODE_NAME_TAKEN", {{"node", message.node_name()}});
  }
  v1::Node record;
  record.set_name(message.node_name());
  record.set_node_class(message.node_class());
  record.set_state(v1::Node::READY);
  *record.mutable_devices() = message.devices();
  *record.mutable_labels() = message.labels();
  record.set_address(message.address());
  record.set_worker_version(message.worker_version());
  *record.mutable_last_heartbeat_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(clock_.wall()));
  Transaction transaction;
  transaction.nodes.push_back(record);
  if (absl::Status status = store_->Commit(transaction); !status.ok()) return status;

  NodeState& node = nodes_[message.node_name()];
  if (node.session != nullptr && node.session != session)
    node.session->Close(absl::AbortedError("replaced by a newer connection of this worker"));
  node.record = std::move(record);
  node.instance_id = message.instance_id();
  node.session = session;
  node.lease_end = clock_.monotonic() + options_.lease + options_.kill_grace;
  spdlog::info("worker {} registered: class {}, {} device(s), holds {} attempt(s)", message.node_name(),
               v1::ResourceSpec::NodeClass_Name(message.node_class()), message.devices_size(), message.held_size());
  Reconcile(&node, message);
  PlaceJobs();
  return absl::OkStatus();
}

void Coordinator::Reconcile(NodeState* node, const v1::Register& message) {
  const std::string& name = message.node_name();
  v1::ControllerMessage reply;
  auto* registered = reply.mutable_registered();
  *registered->mutable_lease() = TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(options_.lease));
  *registered->mutable_heartbeat_interval() =
      TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(options_.heartbeat_interval));
  node->left.clear();
  std::vector<v1::AttemptId> forgotten;
  std::map<std::string, const v1::HeldAttempt*> kept;  // by job uid
  for (const v1::HeldAttempt& held : message.held()) {
    Gang* gang = FindGang(held.id());
    if (gang != nullptr && gang->members.contains(name) && !gang->members.at(name).ended) {
      *registered->add_keep() = held.id();
      kept[held.id().job_uid()] = &held;
    } else if (held.ended()) {
      forgotten.push_back(held.id());
    } else {
      node->left.insert({held.id().job_uid(), held.id().attempt()});
    }
  }
  node->session->Send(reply);
  for (const v1::AttemptId& id : forgotten) SendForget(id, name);

  std::vector<std::string> affected;
  for (auto& [uid, gang] : gangs_) {
    const auto member = gang.members.find(name);
    if (member == gang.members.end() || member->second.ended) continue;
    affected.push_back(uid);
    const auto held = kept.find(uid);
    const v1::Job::State state = jobs_.at(uid).state();
    if (held == kept.end()) {
      if (state == v1::Job::STARTING && !member->second.prepared) {
        SendPrepare(gang, name);  // the message was lost with the connection
        continue;
      }
      member->second.ended = true;
      SetCause(&gang, v1::END_CAUSE_WORKER_LOST, absl::StrCat("worker ", name, " came back without its ranks"));
      continue;
    }
    for (const v1::RankState& rank : held->second->ranks()) {
      if (!gang.Holds(name, rank.rank())) continue;
      if (!gang.built_in && rank.pid() > 0) gang.started.insert(rank.rank());
      if (rank.has_exited() && rank.exited().rank() == rank.rank()) OnRankExited(&gang, rank.exited());
    }
    if (held->second->ended()) {
      member->second.ended = true;
    } else if (state == v1::Job::STOPPING) {
      SendStop(gang, name);
    } else if (gang.launched && !held->second->launched()) {
      SendLaunch(gang, name);
    }
  }
  for (const std::string& uid : affected) Advance(uid);
}

void Coordinator::Receive(const std::shared_ptr<WorkerSession>& session, const v1::WorkerMessage& message) {
  const absl::MutexLock lock(&mutex_);
  const auto found =
      std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& entry) { return entry.second.session == session; });
  if (found == nodes_.end()) return;  // a replaced or expired session
  const std::string name = found->first;
  NodeState& node = found->second;
  switch (message.message_case()) {
    case v1::WorkerMessage::kHeartbeat: {
      node.lease_end = clock_.monotonic() + options_.lease + options_.kill_grace;
      *node.record.mutable_last_heartbeat_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(clock_.wall()));
      v1::ControllerMessage ack;
      ack.mutable_heartbeat_ack()->set_sequence(message.heartbeat().sequence());
      session->Send(ack);
      return;
    }
    case v1::WorkerMessage::kPrepared:
      return OnPrepared(name, message.prepared());
    case v1::WorkerMessage::kRankStarted:
      if (Gang* gang = FindGang(message.rank_started().id());
          gang != nullptr && !gang->built_in && gang->Holds(name, message.rank_started().rank())) {
        gang->started.insert(message.rank_started().rank());
        Advance(message.rank_started().id().job_uid());
      }
      return;
    case v1::WorkerMessage::kRankExited:
      if (Gang* gang = FindGang(message.rank_exited().id());
          gang != nullptr && gang->Holds(name, message.rank_exited().rank())) {
        OnRankExited(gang, message.rank_exited());
        Advance(message.rank_exited().id().job_uid());
      }
      return;
    case v1::WorkerMessage::kAttemptEnded:
      return OnAttemptEnded(name, message.attempt_ended().id());
    case v1::WorkerMessage::kCheckpointQuestion:
      return OnCheckpointQuestion(name, message.checkpoint_question());
    default:
      return;
  }
}

void Coordinator::Disconnected(const std::shared_ptr<WorkerSession>& session) {
  const absl::MutexLock lock(&mutex_);
  for (auto& [name, node] : nodes_) {
    if (node.session != session) continue;
    node.session = nullptr;
    if (node.record.state() == v1::Node::READY) node.record.set_state(v1::Node::UNREACHABLE);
    spdlog::warn("worker {} is not connected any more; its lease runs for {}", name,
                 absl::FormatDuration(node.lease_end - clock_.monotonic()));
  }
}

void Coordinator::ExpireLeases(absl::Duration now) {
  for (auto& [name, node] : nodes_) {
    if (node.record.state() == v1::Node::LOST || now < node.lease_end) continue;
    node.record.set_state(v1::Node::LOST);
    node.left.clear();
    if (node.session != nullptr) node.session->Close(absl::DeadlineExceededError("no heartbeat within the lease"));
    node.session = nullptr;
    spdlog::warn("worker {} is lost: no heartbeat for {}", name, absl::FormatDuration(options_.lease));
    MemberLost(name, absl::StrCat("no heartbeat for ", absl::FormatDuration(options_.lease)));
  }
}

}  // namespace mp
