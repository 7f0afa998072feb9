// What ranks report about a job's progress, beside its metrics.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/fleet/coordinator.h"
#include "server/job/state_machine.h"

namespace mp {
namespace {

std::string PlanText(const v1::PrecisionPlan& plan) {
  std::map<std::string, int> counts;
  std::vector<std::string> exceptions;
  for (const v1::PrecisionPlan::Layer& layer : plan.layers()) {
    ++counts[layer.compute()];
    if (!layer.reason().empty())
      exceptions.push_back(absl::StrCat(layer.name(), " in ", layer.compute(), ": ", layer.reason()));
  }
  std::vector<std::string> parts;
  parts.reserve(counts.size());
  for (const auto& [compute, count] : counts) parts.push_back(absl::StrCat(count, " in ", compute));
  std::string text = absl::StrCat("linear layers: ", absl::StrJoin(parts, ", "));
  if (!exceptions.empty()) absl::StrAppend(&text, " (", absl::StrJoin(exceptions, "; "), ")");
  return text;
}

void Advance(const v1::Frame& frame, v1::Progress* progress) {
  progress->set_step(frame.step());
  const auto value = [&](const char* name) {
    const auto it = frame.scalars().find(name);
    return it == frame.scalars().end() ? std::optional<double>() : std::optional<double>(it->second);
  };
  if (const auto loss = value("loss")) {
    progress->set_loss(*loss);
    if (!progress->has_first_loss()) progress->set_first_loss(*loss);
  }
  if (const auto rate = value("tokens_per_second")) progress->set_tokens_per_second(*rate);
}

}  // namespace

bool Coordinator::Accepts(const v1::AttemptId& id, int rank) {
  const absl::MutexLock lock(&mutex_);
  const auto it = jobs_.find(id.job_uid());
  if (it == jobs_.end() || it->second.attempt() != id.attempt() || it->second.attempts().empty()) return false;
  const auto& placements = it->second.attempts().rbegin()->placements();
  return std::any_of(placements.begin(), placements.end(), [rank](const v1::Placement& placement) {
    return rank >= placement.first_rank() && rank < placement.first_rank() + placement.ranks();
  });
}

absl::Status Coordinator::RankEvents(const v1::AttemptId& id, int rank, const std::vector<v1::TrainerEvent>& events) {
  const absl::MutexLock lock(&mutex_);
  const auto it = jobs_.find(id.job_uid());
  if (it == jobs_.end() || it->second.attempt() != id.attempt()) return absl::OkStatus();
  v1::Job job = it->second;
  std::vector<v1::JobEvent> made;
  bool started = false;
  bool first_frame = false;
  for (const v1::TrainerEvent& event : events) {
    switch (event.event_case()) {
      case v1::TrainerEvent::kStarted:
        started = true;
        break;
      case v1::TrainerEvent::kFrame:
        if (rank != 0) break;
        first_frame = first_frame || !job.progress().has_first_loss();
        mp::Advance(event.frame(), job.mutable_progress());
        break;
      case v1::TrainerEvent::kEvaluation:
        if (const auto loss = event.evaluation().metrics().find("loss"); loss != event.evaluation().metrics().end()) {
          job.mutable_progress()->set_eval_loss(loss->second);
          made.push_back(
              MakeEvent(job, v1::JobEvent::EVALUATED,
                        absl::StrCat("evaluation loss ", loss->second, " at step ", event.evaluation().step())));
        }
        break;
      case v1::TrainerEvent::kCheckpointSaved:
        job.mutable_progress()->set_checkpoint_step(event.checkpoint_saved().step());
        job.mutable_progress()->set_checkpoint_path(event.checkpoint_saved().path());
        made.push_back(MakeEvent(
            job, v1::JobEvent::CHECKPOINT_SAVED,
            absl::StrCat(event.checkpoint_saved().path(), " (", event.checkpoint_saved().bytes(), " bytes)")));
        break;
      case v1::TrainerEvent::kCheckpointDamaged:
        made.push_back(
            MakeEvent(job, v1::JobEvent::CHECKPOINT_DAMAGED,
                      absl::StrCat(event.checkpoint_damaged().path(), ": ", event.checkpoint_damaged().reason())));
        break;
      case v1::TrainerEvent::kResumed:
        made.push_back(MakeEvent(job, v1::JobEvent::RESUMED,
                                 absl::StrCat("from step ", event.resumed().step(), ", ", event.resumed().path())));
        break;
      case v1::TrainerEvent::kPrecisionPlan:
        made.push_back(MakeEvent(job, v1::JobEvent::PRECISION_PLAN, PlanText(event.precision_plan())));
        break;
      default:
        break;
    }
  }
  if (made.empty() && !first_frame) {
    *it->second.mutable_progress() =
        job.progress();  // durable with the next event; the series itself is stored already
  } else if (absl::Status status = Write(job, std::move(made), false); !status.ok()) {
    return status;
  }
  if (Gang* gang = FindGang(id); gang != nullptr && started) {
    gang->started.insert(rank);
    Advance(id.job_uid());
  }
  return absl::OkStatus();
}

}  // namespace mp
