// From pending jobs to gangs: the scheduler's snapshot, durable attempts, and the messages that start them.
#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/util/time_util.h"
#include "server/fleet/coordinator.h"
#include "server/job/state_machine.h"
#include "server/scheduler/scheduler.h"

namespace mp {

void Coordinator::PlaceJobs() {
  Snapshot snapshot;
  for (const std::string& uid : order_) {
    const v1::Job& job = jobs_.at(uid);
    if (job.state() != v1::Job::PENDING) continue;
    const auto& resources = job.spec().resources();
    const auto& labels = job.spec().scheduling().labels();
    snapshot.pending.push_back({job.name(),
                                resources.node_class(),
                                resources.nodes(),
                                resources.devices_per_node(),
                                job.spec().precision().policy() == v1::PrecisionSpec::FP8,
                                {labels.begin(), labels.end()}});
  }
  if (snapshot.pending.empty()) return;
  snapshot.recovering = clock_.monotonic() < recovery_end_;
  for (const auto& [name, state] : nodes_) {
    // A node whose lease has run out holds nothing and offers nothing.
    if (state.record.state() == v1::Node::LOST) continue;
    NodeSnapshot& node = snapshot.nodes.emplace_back();
    node.name = name;
    node.node_class = state.record.node_class();
    node.labels = {state.record.labels().begin(), state.record.labels().end()};
    node.devices = state.record.devices_size();
    node.ready = state.session != nullptr && state.left.empty();
    std::set<int> taken;
    for (const auto& [uid, gang] : gangs_) {
      const auto it = gang.members.find(name);
      if (it == gang.members.end()) continue;
      taken.insert(it->second.placement.devices().begin(), it->second.placement.devices().end());
      node.holders.push_back(gang.id.job());
    }
    for (const v1::Device& device : state.record.devices()) {
      if (!taken.contains(device.index())) node.free_devices.push_back(device.index());
    }
  }
  for (const Decision& decision : Schedule(snapshot)) {
    v1::Job& job = *FindByName(decision.job);
    if (const auto* placements = std::get_if<std::vector<v1::Placement>>(&decision.result)) {
      // A write that failed leaves the job pending; Tick tries again.
      if (!StartAttempt(job.uid(), *placements).ok()) return;
      continue;
    }
    const auto& reason = std::get<v1::PendingReason>(decision.result);
    const bool is_new = job.pending_reason().code() != reason.code();
    *job.mutable_pending_reason() = reason;
    if (is_new) {
      const v1::Job changed = job;
      Write(changed, {MakeEvent(changed, v1::JobEvent::PENDING_REASON_CHANGED, reason.message())}, false).IgnoreError();
    }
  }
}

// By value: the job that holds the caller's copy is replaced below.
absl::Status Coordinator::StartAttempt(
    std::string uid, const std::vector<v1::Placement>& placements) {  // NOLINT(performance-unnecessary-value-param)
  v1::Job job = jobs_.at(uid);
  v1::Attempt& attempt = *job.add_attempts();
  attempt.set_number(job.attempt() + 1);
  job.set_attempt(attempt.number());
  std::vector<std::string> places;
  for (const v1::Placement& placement : placements) {
    *attempt.add_placements() = placement;
    places.push_back(absl::StrCat(
        placement.node(), " (", placement.ranks() == 1 ? "rank " : "ranks ", placement.first_rank(),
        placement.ranks() == 1 ? "" : absl::StrCat("-", placement.first_rank() + placement.ranks() - 1), ")"));
  }
  const std::string where = absl::StrCat("attempt ", attempt.number(), " on ", absl::StrJoin(places, ", "));
  *attempt.mutable_create_time() =
      google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(clock_.wall()));
  if (absl::Status status = Transition(&job, v1::Job::STARTING, v1::END_CAUSE_UNSPECIFIED, where, clock_.wall());
      !status.ok())
    return status;
  absl::Status status = Write(
      job, {MakeEvent(job, v1::JobEvent::PLACED, where), MakeEvent(job, v1::JobEvent::STATE_CHANGED, where)}, true);
  if (!status.ok()) return status;

  Gang& gang = gangs_[uid];
  gang.id.set_job_uid(uid);
  gang.id.set_job(job.name());
  gang.id.set_attempt(job.attempt());
  gang.built_in = !job.spec().has_workload();
  gang.start_deadline = clock_.monotonic() + options_.start_timeout;
  for (const v1::Placement& placement : placements) {
    gang.members[placement.node()] = {placement, false, false};
    gang.world_size += placement.ranks();
  }
  spdlog::info("job {}: {}", job.name(), where);
  for (const auto& [node, member] : gang.members) SendPrepare(gang, node);
  return absl::OkStatus();
}

void Coordinator::Send(const std::string& node, const v1::ControllerMessage& message) {
  const auto it = nodes_.find(node);
  if (it != nodes_.end() && it->second.session != nullptr) it->second.session->Send(message);
}

void Coordinator::SendPrepare(const Gang& gang, const std::string& node) {
  const v1::Job& job = jobs_.at(gang.id.job_uid());
  v1::ControllerMessage message;
  auto* prepare = message.mutable_prepare_attempt();
  *prepare->mutable_id() = gang.id;
  *prepare->mutable_placement() = gang.members.at(node).placement;
  prepare->set_world_size(gang.world_size);
  *prepare->mutable_spec() = job.spec();
  prepare->set_working_directory(job.working_directory());
  prepare->set_hosts_rendezvous(gang.members.at(node).placement.first_rank() == 0);
  prepare->set_resume_from(gang.id.attempt() > 1 ? "latest" : job.spec().training().resume_from_checkpoint());
  Send(node, message);
}

void Coordinator::SendLaunch(const Gang& gang, const std::string& node) {
  v1::ControllerMessage message;
  auto* launch = message.mutable_launch_attempt();
  *launch->mutable_id() = gang.id;
  launch->set_rendezvous_address(gang.rendezvous_address);
  launch->set_rendezvous_port(gang.rendezvous_port);
  Send(node, message);
}

void Coordinator::SendStop(const Gang& gang, const std::string& node) {
  v1::ControllerMessage message;
  auto* stop = message.mutable_stop_attempt();
  *stop->mutable_id() = gang.id;
  *stop->mutable_grace() =
      google::protobuf::util::TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(options_.stop_grace));
  stop->set_reason(gang.message);
  Send(node, message);
}

void Coordinator::SendForget(const v1::AttemptId& id, const std::string& node) {
  v1::ControllerMessage message;
  *message.mutable_forget_attempt()->mutable_id() = id;
  Send(node, message);
}

}  // namespace mp
