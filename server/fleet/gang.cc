// A gang from its preparation to its end.
#include "server/fleet/gang.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/time_util.h"
#include "server/fleet/coordinator.h"
#include "server/job/state_machine.h"

namespace mp {

Gang* Coordinator::FindGang(const v1::AttemptId& id) {
  const auto it = gangs_.find(id.job_uid());
  return it != gangs_.end() && it->second.id.attempt() == id.attempt() ? &it->second : nullptr;
}

void Coordinator::SetCause(Gang* gang, v1::EndCause cause, const std::string& message) {
  if (gang->cause != v1::END_CAUSE_UNSPECIFIED && !IsNearerToRoot(cause, gang->cause)) return;
  gang->cause = cause;
  gang->message = message;
}

void Coordinator::Advance(const std::string& uid) {
  const auto it = gangs_.find(uid);
  if (it == gangs_.end()) return;
  Gang& gang = it->second;
  if (gang.cause == v1::END_CAUSE_UNSPECIFIED && static_cast<int>(gang.exited.size()) == gang.world_size) {
    SetCause(&gang, v1::END_CAUSE_SUCCEEDED, CauseText(v1::END_CAUSE_SUCCEEDED));
  }
  const auto state = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return jobs_.at(uid).state(); };

  if (state() == v1::Job::STARTING && gang.cause == v1::END_CAUSE_UNSPECIFIED && gang.AllPrepared() && !gang.launched) {
    gang.launched = true;
    for (const auto& [node, member] : gang.members) SendLaunch(gang, node);
  }
  if (state() == v1::Job::STARTING && static_cast<int>(gang.started.size()) == gang.world_size &&
      (gang.cause == v1::END_CAUSE_UNSPECIFIED || gang.cause == v1::END_CAUSE_SUCCEEDED)) {
    if (!ChangeState(uid, v1::Job::RUNNING, v1::END_CAUSE_UNSPECIFIED,
                     absl::StrCat("all ", gang.world_size, " rank(s) run"))
             .ok())
      return;
  }
  if (gang.cause != v1::END_CAUSE_UNSPECIFIED && (state() == v1::Job::STARTING || state() == v1::Job::RUNNING)) {
    if (!ChangeState(uid, v1::Job::STOPPING, gang.cause, gang.message).ok()) return;
    spdlog::info("job {}: attempt {} ends: {}", gang.id.job(), gang.id.attempt(), gang.message);
    for (const auto& [node, member] : gang.members) {
      if (!member.ended) SendStop(gang, node);
    }
  }
  if (state() == v1::Job::STOPPING && gang.AllEnded()) FinishAttempt(uid);
}

void Coordinator::FinishAttempt(const std::string& uid) {
  const Gang& gang = gangs_.at(uid);
  v1::Job job = jobs_.at(uid);
  v1::Attempt& attempt = *job.mutable_attempts()->rbegin();
  *attempt.mutable_end_time() =
      google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(clock_.wall()));
  attempt.set_cause(gang.cause);
  attempt.set_message(gang.message);
  const Outcome outcome = AfterAttempt(job, gang.cause, gang.message);
  if (!Transition(&job, outcome.state, gang.cause, outcome.message, clock_.wall()).ok()) return;
  if (!Write(job, {MakeEvent(job, v1::JobEvent::STATE_CHANGED, outcome.message)}, true).ok()) return;
  spdlog::info("job {}: {}: {}", job.name(), v1::Job::State_Name(job.state()), outcome.message);
  const v1::AttemptId id = gang.id;
  std::vector<std::string> nodes;
  for (const auto& [node, member] : gang.members) nodes.push_back(node);
  gangs_.erase(uid);
  for (const std::string& node : nodes) SendForget(id, node);
  PlaceJobs();
}

void Coordinator::OnPrepared(const std::string& node, const v1::Prepared& message) {
  Gang* gang = FindGang(message.id());
  if (gang == nullptr || !gang->members.contains(node)) return;
  if (message.errors().empty()) {
    gang->members.at(node).prepared = true;
    if (!message.rendezvous_address().empty()) {
      gang->rendezvous_address = message.rendezvous_address();
      gang->rendezvous_port = message.rendezvous_port();
    }
  } else {
    std::string all;
    for (const v1::PrepareError& error : message.errors()) {
      absl::StrAppend(&all, all.empty() ? "" : "; ", error.field().empty() ? "" : absl::StrCat(error.field(), ": "),
                      error.message());
    }
    SetCause(gang, message.errors(0).cause(), all);
  }
  Advance(message.id().job_uid());
}

void Coordinator::OnRankExited(Gang* gang, const v1::RankExited& message) {
  gang->exited.insert(message.rank());
  gang->started.insert(message.rank());
  if (message.cause() == v1::END_CAUSE_UNSPECIFIED || message.cause() == v1::END_CAUSE_SUCCEEDED) return;
  SetCause(gang, message.cause(), absl::StrCat("rank ", message.rank(), ": ", message.message()));
}

void Coordinator::OnAttemptEnded(const std::string& node, const v1::AttemptId& id) {
  if (const auto it = nodes_.find(node);
      it != nodes_.end() && it->second.left.erase({id.job_uid(), id.attempt()}) > 0) {
    SendForget(id, node);
    PlaceJobs();
  }
  Gang* gang = FindGang(id);
  if (gang == nullptr || !gang->members.contains(node)) {
    SendForget(id, node);
    return;
  }
  Gang::Member& member = gang->members.at(node);
  member.ended = true;
  const int first = member.placement.first_rank();
  for (int rank = first; rank < first + member.placement.ranks(); ++rank) {
    if (gang->exited.contains(rank) || gang->cause != v1::END_CAUSE_UNSPECIFIED) continue;
    SetCause(gang, v1::END_CAUSE_RANK_DIED, absl::StrCat("rank ", rank, " on ", node, " ended without a report"));
  }
  Advance(id.job_uid());
}

void Coordinator::OnCheckpointQuestion(const std::string& node, const v1::CheckpointQuestion& question) {
  Gang* gang = FindGang(question.id());
  v1::ControllerMessage message;
  auto* answer = message.mutable_checkpoint_answer();
  *answer->mutable_id() = question.id();
  auto* permission = answer->mutable_permission();
  permission->set_step(question.request().step());
  const v1::Job::State state = gang == nullptr ? v1::Job::STATE_UNSPECIFIED : jobs_.at(question.id().job_uid()).state();
  permission->set_granted(state == v1::Job::STARTING || state == v1::Job::RUNNING);
  if (!permission->granted()) {
    permission->set_reason(gang == nullptr ? "this attempt is over"
                                           : absl::StrCat("the job is ", v1::Job::State_Name(state)));
  }
  Send(node, message);
}

void Coordinator::MemberLost(const std::string& node, const std::string& why) {
  std::vector<std::string> affected;
  for (auto& [uid, gang] : gangs_) {
    const auto it = gang.members.find(node);
    if (it == gang.members.end() || it->second.ended) continue;
    it->second.ended = true;
    SetCause(&gang, v1::END_CAUSE_WORKER_LOST, absl::StrCat("worker ", node, ": ", why));
    const v1::Job job = jobs_.at(uid);
    Write(job, {MakeEvent(job, v1::JobEvent::WORKER_LOST, absl::StrCat("worker ", node, ": ", why))}, false)
        .IgnoreError();
    affected.push_back(uid);
  }
  for (const std::string& uid : affected) Advance(uid);
}

}  // namespace mp
