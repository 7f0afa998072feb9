#include "server/fleet/coordinator.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/api/status_details.h"
#include "server/job/state_machine.h"
#include "server/spec/spec.h"

namespace mp {
namespace {

constexpr int kDefaultPage = 100;
constexpr int kMaxPage = 1000;

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp stamp;
  const int64_t nanos = absl::ToUnixNanos(time);
  stamp.set_seconds(nanos / 1000000000);
  stamp.set_nanos(static_cast<int32_t>(nanos % 1000000000));
  return stamp;
}

std::string RandomUid() {
  std::random_device device;
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = device();
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return absl::BytesToHexString(bytes);
}

absl::Status NoSuchJob(const std::string& name) {
  return WithReason(absl::NotFoundError(absl::StrCat("there is no job \"", name, "\"")), "JOB_NOT_FOUND",
                    {{"job", name}});
}

// Where output_dir lies, in one form for one directory.
std::string OutputDirectory(const v1::Job& job) {
  std::string path =
      (std::filesystem::path(job.working_directory()) / job.spec().training().output_dir()).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool HasRelativePath(const v1::JobSpec& spec) {
  const auto relative = [](const std::string& path) { return !path.empty() && path[0] != '/'; };
  const auto source = [&](const v1::DataSource& s) { return relative(s.path()); };
  const std::string& resume = spec.training().resume_from_checkpoint();
  return std::any_of(spec.data().train().begin(), spec.data().train().end(), source) ||
         std::any_of(spec.data().eval().begin(), spec.data().eval().end(), source) ||
         relative(spec.model().config_path()) || relative(spec.training().output_dir()) ||
         (relative(resume) && resume != "none" && resume != "latest");
}

}  // namespace

Coordinator::Coordinator(Store* store, CoordinatorOptions options, Clock clock,
                         std::function<void(const std::string&)> on_change)
    : store_(store), options_(std::move(options)), clock_(std::move(clock)), on_change_(std::move(on_change)) {}

absl::Status Coordinator::Start() {
  absl::StatusOr<StoredState> state = store_->Load();
  if (!state.ok()) return state.status();
  const absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.monotonic();
  for (auto& [uid, sequence] : state->last_events) last_event_[uid] = sequence;
  for (auto& [request, uid] : state->requests) uid_by_request_[request] = uid;
  for (v1::Node& record : state->nodes) {
    // Its lease may have been renewed just before the earlier controller ended.
    NodeState& node = nodes_[record.name()];
    node.record = std::move(record);
    node.record.set_state(v1::Node::UNREACHABLE);
    node.lease_end = now + options_.lease + options_.kill_grace;
    recovery_end_ = std::max(recovery_end_, node.lease_end);
  }
  for (v1::Job& job : state->jobs) {
    const std::string uid = job.uid();
    order_.push_back(uid);
    uid_by_name_[job.name()] = uid;
    const bool has_ranks =
        job.state() == v1::Job::STARTING || job.state() == v1::Job::RUNNING || job.state() == v1::Job::STOPPING;
    if (has_ranks && job.attempts_size() > 0) {
      Gang& gang = gangs_[uid];
      const v1::Attempt& attempt = *job.attempts().rbegin();
      gang.id.set_job_uid(uid);
      gang.id.set_job(job.name());
      gang.id.set_attempt(attempt.number());
      gang.built_in = !job.spec().has_workload();
      for (const v1::Placement& placement : attempt.placements()) {
        gang.members[placement.node()] = {placement, true, false};
        gang.world_size += placement.ranks();
      }
      gang.launched = job.state() != v1::Job::STARTING;
      if (gang.launched) {
        for (int rank = 0; rank < gang.world_size; ++rank) gang.started.insert(rank);
      }
      if (job.state() == v1::Job::STOPPING) {
        gang.cause = job.stop_cause();
        gang.message = job.message();
      } else if (job.state() == v1::Job::STARTING) {
        gang.cause = v1::END_CAUSE_CONTROLLER_RESTARTED;
        gang.message = CauseText(gang.cause);
      }
    }
    jobs_[uid] = std::move(job);
  }
  std::vector<std::string> active;
  for (const auto& [uid, gang] : gangs_) active.push_back(uid);
  for (const std::string& uid : active) Advance(uid);
  return absl::OkStatus();
}

v1::Job* Coordinator::FindByName(const std::string& name) {
  const auto it = uid_by_name_.find(name);
  return it == uid_by_name_.end() ? nullptr : &jobs_.at(it->second);
}

v1::JobEvent Coordinator::MakeEvent(const v1::Job& job, v1::JobEvent::Type type, const std::string& message) {
  v1::JobEvent event;
  event.set_job(job.name());
  *event.mutable_time() = ToProto(clock_.wall());
  event.set_type(type);
  event.set_attempt(job.attempt());
  event.set_state(job.state());
  event.set_cause(job.stop_cause());
  event.set_message(message);
  return event;
}

absl::Status Coordinator::Write(const v1::Job& job, std::vector<v1::JobEvent> events, bool with_attempt,
                                const std::string& request_id) {
  Transaction transaction;
  v1::Job written = job;
  int64_t& last = last_event_[job.uid()];
  int64_t next = last;
  written.set_last_event_sequence(last + static_cast<int64_t>(events.size()));
  written.set_etag(absl::StrCat(written.last_event_sequence()));
  transaction.jobs.push_back(written);
  for (v1::JobEvent& event : events) {
    event.set_sequence(++next);
    transaction.events.emplace_back(job.uid(), std::move(event));
  }
  if (with_attempt) transaction.attempts.emplace_back(job.uid(), *job.attempts().rbegin());
  transaction.request_id = request_id;
  transaction.request_job_uid = job.uid();
  if (absl::Status status = store_->Commit(transaction); !status.ok()) {
    spdlog::error("job {}: a change could not be stored and is tried again: {}", job.name(),
                  std::string(status.message()));
    retry_ = true;
    return status;
  }
  last = next;
  jobs_[job.uid()] = std::move(written);
  if (on_change_) on_change_(job.name());
  return absl::OkStatus();
}

absl::Status Coordinator::ChangeState(const std::string& uid, v1::Job::State to, v1::EndCause cause,
                                      const std::string& message) {
  v1::Job job = jobs_.at(uid);
  if (absl::Status status = Transition(&job, to, cause, message, clock_.wall()); !status.ok()) return status;
  return Write(job, {MakeEvent(job, v1::JobEvent::STATE_CHANGED, message)}, false);
}

absl::Status Coordinator::CheckOutputDirectory(const v1::Job& job) {
  if (job.spec().has_workload()) return absl::OkStatus();
  const std::string wanted = OutputDirectory(job);
  const bool resumes = job.spec().training().resume_from_checkpoint() != "none";
  for (const auto& [uid, other] : jobs_) {
    if (other.spec().has_workload() || OutputDirectory(other) != wanted) continue;
    if (resumes && IsFinal(other.state())) continue;
    const std::string advice =
        IsFinal(other.state())
            ? "name another training.output_dir, or continue from it with training.resume_from_checkpoint: latest"
            : "name another training.output_dir";
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat("training.output_dir ", wanted, " belongs to job ", other.name(),
                                                   " (", v1::Job::State_Name(other.state()), "); ", advice)),
        "OUTPUT_DIR_TAKEN", {{"owner", other.name()}});
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> Coordinator::CreateJob(const v1::CreateJobRequest& request) {
  {
    const absl::MutexLock lock(&mutex_);
    const auto repeated = uid_by_request_.find(request.request_id());
    if (!request.request_id().empty() && repeated != uid_by_request_.end()) return jobs_.at(repeated->second);
  }
  absl::StatusOr<v1::JobSpec> spec = ResolveSpec(request);
  if (!spec.ok()) return spec.status();
  v1::Job job;
  job.set_name(spec->name());
  job.set_uid(RandomUid());
  job.set_state(v1::Job::PENDING);
  job.set_working_directory(options_.shared_root.empty() ? request.working_directory() : options_.shared_root);
  if (job.working_directory().empty()) {
    if (HasRelativePath(*spec)) {
      return InvalidSpec({{"working_directory",
                           "the spec has relative paths, and neither the controller has a --shared-root nor the "
                           "request a working_directory"}});
    }
    job.set_working_directory("/");
  }
  if (job.working_directory()[0] != '/') return InvalidSpec({{"working_directory", "must be an absolute path"}});
  job.mutable_progress()->set_max_steps(spec->training().max_steps());
  *job.mutable_create_time() = ToProto(clock_.wall());
  *job.mutable_spec() = *std::move(spec);

  const absl::MutexLock lock(&mutex_);
  if (const v1::Job* other = FindByName(job.name()); other != nullptr) {
    return WithReason(
        absl::AlreadyExistsError(absl::StrCat("a job named \"", job.name(), "\" exists (",
                                              v1::Job::State_Name(other->state()), "); choose another name")),
        "JOB_EXISTS", {{"job", job.name()}});
  }
  if (absl::Status status = CheckOutputDirectory(job); !status.ok()) return status;
  if (request.validate_only()) return job;
  if (absl::Status status =
          Write(job, {MakeEvent(job, v1::JobEvent::SUBMITTED, "submitted")}, false, request.request_id());
      !status.ok())
    return status;
  order_.push_back(job.uid());
  uid_by_name_[job.name()] = job.uid();
  if (!request.request_id().empty()) uid_by_request_[request.request_id()] = job.uid();
  spdlog::info("job {} submitted", job.name());
  PlaceJobs();
  return jobs_.at(job.uid());
}

absl::StatusOr<v1::Job> Coordinator::GetJob(const std::string& name) {
  const absl::MutexLock lock(&mutex_);
  const v1::Job* job = FindByName(name);
  if (job == nullptr) return NoSuchJob(name);
  return *job;
}

absl::StatusOr<v1::ListJobsResponse> Coordinator::ListJobs(const v1::ListJobsRequest& request) {
  if (request.page_size() < 0)
    return WithReason(absl::InvalidArgumentError("page_size must not be negative"), "INVALID_PAGE");
  const int page = request.page_size() == 0 ? kDefaultPage : std::min<int>(request.page_size(), kMaxPage);
  const absl::MutexLock lock(&mutex_);
  // A token is the index of the newest job not sent yet.
  int64_t next = static_cast<int64_t>(order_.size()) - 1;
  if (!request.page_token().empty()) {
    if (!absl::SimpleAtoi(request.page_token(), &next) || next < 0 || next >= static_cast<int64_t>(order_.size())) {
      return WithReason(absl::InvalidArgumentError("page_token is not one that ListJobs gave"), "INVALID_PAGE");
    }
  }
  constexpr size_t kMaxBytes = 3U << 20;  // below the 4 MiB that clients take
  size_t bytes = 0;
  v1::ListJobsResponse response;
  for (; next >= 0 && response.jobs_size() < page && bytes < kMaxBytes; --next) {
    const v1::Job& job = jobs_.at(order_[static_cast<size_t>(next)]);
    const auto& states = request.states();
    if (!states.empty() && std::find(states.begin(), states.end(), job.state()) == states.end()) continue;
    *response.add_jobs() = job;
    response.mutable_jobs()->rbegin()->clear_attempts();
    bytes += response.jobs().rbegin()->ByteSizeLong();
  }
  if (next >= 0) response.set_next_page_token(absl::StrCat(next));
  return response;
}

absl::StatusOr<v1::Job> Coordinator::CancelJob(const v1::CancelJobRequest& request) {
  const absl::MutexLock lock(&mutex_);
  v1::Job* job = FindByName(request.name());
  if (job == nullptr) return NoSuchJob(request.name());
  if (job->state() == v1::Job::SUCCEEDED || job->state() == v1::Job::FAILED) {
    return WithReason(absl::FailedPreconditionError(
                          absl::StrCat("job ", job->name(), " is ", v1::Job::State_Name(job->state()), " already")),
                      "JOB_FINAL", {{"job", job->name()}});
  }
  const std::string uid = job->uid();
  const std::string message = CauseText(v1::END_CAUSE_CANCELLED);
  if (request.validate_only() || job->state() == v1::Job::CANCELLED) return *job;
  if (const auto gang = gangs_.find(uid); gang != gangs_.end()) {
    if (job->state() == v1::Job::STOPPING && job->stop_cause() != v1::END_CAUSE_CANCELLED) {
      // It was to end in another way; a restarted controller must know.
      v1::Job changed = *job;
      changed.set_stop_cause(v1::END_CAUSE_CANCELLED);
      changed.set_message(message);
      if (absl::Status status = Write(changed, {MakeEvent(changed, v1::JobEvent::STATE_CHANGED, message)}, false);
          !status.ok())
        return status;
    }
    SetCause(&gang->second, v1::END_CAUSE_CANCELLED, message);
    Advance(uid);
    return jobs_.at(uid);
  }
  if (absl::Status status = ChangeState(uid, v1::Job::CANCELLED, v1::END_CAUSE_CANCELLED, message); !status.ok())
    return status;
  PlaceJobs();
  return jobs_.at(uid);
}

absl::StatusOr<std::vector<v1::JobEvent>> Coordinator::Events(const std::string& name, int64_t after, int limit) {
  std::string uid;
  {
    const absl::MutexLock lock(&mutex_);
    const v1::Job* job = FindByName(name);
    if (job == nullptr) return NoSuchJob(name);
    uid = job->uid();
  }
  return store_->Events(uid, after, limit);
}

absl::StatusOr<v1::ListNodesResponse> Coordinator::ListNodes(const v1::ListNodesRequest& request) {
  if (request.page_size() < 0)
    return WithReason(absl::InvalidArgumentError("page_size must not be negative"), "INVALID_PAGE");
  const int page = request.page_size() == 0 ? kMaxPage : std::min<int>(request.page_size(), kMaxPage);
  v1::ListNodesResponse response;
  for (v1::Node& node : AllNodes()) {
    if (node.name() <= request.page_token()) continue;
    if (response.nodes_size() == page) {
      response.set_next_page_token(response.nodes().rbegin()->name());
      break;
    }
    *response.add_nodes() = std::move(node);
  }
  return response;
}

absl::StatusOr<JobIdentity> Coordinator::FindJob(const std::string& name) {
  const absl::MutexLock lock(&mutex_);
  const v1::Job* job = FindByName(name);
  if (job == nullptr) return NoSuchJob(name);
  const auto& resources = job->spec().resources();
  return JobIdentity{job->uid(), job->name(), job->attempt(), resources.nodes() * resources.devices_per_node(),
                     IsFinal(job->state())};
}

std::vector<v1::Job> Coordinator::AllJobs() {
  const absl::MutexLock lock(&mutex_);
  std::vector<v1::Job> all;
  for (const std::string& uid : order_) all.push_back(jobs_.at(uid));
  return all;
}

std::vector<v1::Node> Coordinator::AllNodes() {
  const absl::MutexLock lock(&mutex_);
  std::vector<v1::Node> all;
  for (const auto& [name, state] : nodes_) {
    v1::Node node = state.record;
    for (const auto& [uid, gang] : gangs_) {
      if (const auto it = gang.members.find(name); it != gang.members.end()) {
        (*node.mutable_devices_in_use())[gang.id.job()] = it->second.placement.ranks();
      }
    }
    all.push_back(std::move(node));
  }
  return all;
}

void Coordinator::Tick() {
  const absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.monotonic();
  retry_ = false;
  ExpireLeases(now);
  std::vector<std::string> active;
  for (auto& [uid, gang] : gangs_) {
    const v1::Job& job = jobs_.at(uid);
    if (job.state() == v1::Job::STARTING && now >= gang.start_deadline) {
      SetCause(&gang, v1::END_CAUSE_START_FAILED,
               absl::StrCat("only ", gang.started.size(), " of ", gang.world_size, " ranks started within ",
                            absl::FormatDuration(options_.start_timeout)));
    }
    const auto& limit = job.spec().scheduling().time_limit();
    const absl::Duration allowed = absl::Seconds(limit.seconds()) + absl::Nanoseconds(limit.nanos());
    if (allowed > absl::ZeroDuration() && job.has_start_time() &&
        clock_.wall() - absl::FromUnixSeconds(job.start_time().seconds()) >= allowed) {
      SetCause(&gang, v1::END_CAUSE_TIME_LIMIT,
               absl::StrCat("the time limit of ", absl::FormatDuration(allowed), " is reached"));
    }
    active.push_back(uid);
  }
  for (const std::string& uid : active) Advance(uid);
  PlaceJobs();
}

absl::Duration Coordinator::NextDeadline() {
  const absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.monotonic();
  absl::Duration next = now + (retry_ ? absl::Seconds(1) : absl::Minutes(1));
  for (const auto& [name, node] : nodes_) {
    if (node.record.state() != v1::Node::LOST) next = std::min(next, node.lease_end);
  }
  for (const auto& [uid, gang] : gangs_) {
    const v1::Job& job = jobs_.at(uid);
    if (job.state() == v1::Job::STARTING) next = std::min(next, gang.start_deadline);
    if (job.spec().scheduling().time_limit().seconds() > 0) next = std::min(next, now + absl::Seconds(1));
  }
  if (recovery_end_ > now) next = std::min(next, recovery_end_);
  return next;
}

}  // namespace mp
