// Ranks: started, read, stopped, reaped.
#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "worker/agent/agent.h"
#include "worker/agent/environment.h"
#include "worker/agent/process_tree.h"

namespace mp::agent {
namespace {

struct Pipe {
  OwnedFd read;
  OwnedFd write;
};

absl::StatusOr<Pipe> MakePipe(bool nonblocking_read) {
  int fds[2] = {};
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  Pipe result{OwnedFd(fds[0]), OwnedFd(fds[1])};
  if (nonblocking_read) fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return result;
}

absl::Status WriteJobFile(const v1::JobSpec& spec, const std::string& path) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  if (const auto status = google::protobuf::util::MessageToJsonString(spec, &json, options); !status.ok()) {
    return absl::InternalError(absl::StrCat("the spec can't be written as JSON: ", std::string(status.message())));
  }
  std::ofstream file(path, std::ios::binary);
  file << json;
  return file.flush() ? absl::OkStatus() : absl::ErrnoToStatus(errno, path);
}

// How a process ended, in words.
std::string Describe(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const char* name = sigabbrev_np(number);
    return absl::StrCat("killed by signal ", number, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
  }
  return absl::StrCat("exit status ", WEXITSTATUS(status));
}

}  // namespace

absl::Status Agent::StartRank(Attempt* attempt, const v1::LaunchAttempt& launch, int local_rank) {
  const v1::PrepareAttempt& prepare = attempt->prepare;
  std::error_code error;
  std::filesystem::create_directories(attempt->directory, error);
  if (error) return absl::InternalError(absl::StrCat(attempt->directory, ": ", error.message()));
  auto rank = std::make_unique<Rank>();
  rank->rank = prepare.placement().first_rank() + local_rank;
  rank->token = absl::StrCat(token_prefix_, prepare.id().job_uid(), "-", prepare.id().attempt(), "-", rank->rank);

  absl::StatusOr<Pipe> output = MakePipe(true);
  absl::StatusOr<Pipe> report = MakePipe(true);
  absl::StatusOr<Pipe> command = MakePipe(false);
  for (const auto* made : {&output, &report, &command}) {
    if (!made->ok()) return made->status();
  }
  const std::string spool = absl::StrCat(attempt->directory, "/rank-", rank->rank, ".log");
  rank->spool = OwnedFd(open(spool.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!rank->spool.valid()) return absl::ErrnoToStatus(errno, spool);

  RankPlace place;
  place.rank = rank->rank;
  place.local_rank = local_rank;
  place.device = prepare.placement().devices_size() > local_rank ? prepare.placement().devices(local_rank) : local_rank;
  place.report_fd = report->write.get();
  place.command_fd = command->read.get();
  place.rendezvous_fd = rank->rank == 0 && attempt->rendezvous.fd.valid() ? attempt->rendezvous.fd.get() : -1;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  place.threads =
      devices_.node_class == v1::ResourceSpec::CPU ? 1 : std::max(1, cores / std::max(1, prepare.placement().ranks()));
  place.token = rank->token;

  SpawnRequest request;
  request.argv = {options_.launcher, absl::StrCat(getpid())};
  if (prepare.spec().has_workload()) {
    request.argv.insert(request.argv.end(), prepare.spec().workload().command().begin(),
                        prepare.spec().workload().command().end());
  } else {
    const std::string job_file = attempt->directory + "/job.json";
    if (absl::Status status = WriteJobFile(prepare.spec(), job_file); !status.ok()) return status;
    request.argv.insert(request.argv.end(), {options_.trainer, "--job", job_file});
  }
  request.environment = RankEnvironment(prepare, launch, devices_.node_class, options_.gloo_interface, place, environ);
  request.working_directory = prepare.working_directory();
  request.output_fd = output->write.get();
  request.inherited = {place.report_fd, place.command_fd};
  if (place.rendezvous_fd >= 0) request.inherited.push_back(place.rendezvous_fd);
  const absl::StatusOr<pid_t> pid = Spawn(request);
  if (!pid.ok()) return pid.status();
  rank->pid = *pid;
  rank->output = std::move(output->read);
  rank->report = std::move(report->read);
  rank->command = std::move(command->write);
  spdlog::info("job {}: rank {} started, process {}", prepare.id().job(), rank->rank, rank->pid);

  v1::WorkerMessage message;
  auto* started = message.mutable_rank_started();
  *started->mutable_id() = prepare.id();
  started->set_rank(rank->rank);
  started->set_pid(rank->pid);
  Send(message);
  attempt->ranks.push_back(std::move(rank));
  return absl::OkStatus();
}

void Agent::StopAttempt(Attempt* attempt, absl::Duration grace) {
  const bool first = !attempt->stopping;
  attempt->stopping = true;
  attempt->rendezvous.fd.Close();
  const absl::Time kill_at = MonotonicNow() + grace;
  attempt->kill_at = first ? kill_at : std::min(attempt->kill_at, kill_at);
  for (const auto& rank : attempt->ranks) {
    if (rank->reaped) continue;
    rank->stopped_by_us = true;
    if (first) kill(-rank->pid, grace > absl::ZeroDuration() ? SIGTERM : SIGKILL);
  }
}

void Agent::Spool(Rank* rank, const char* data, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = pwrite(rank->spool.get(), data + done, size - done, rank->spooled);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      spdlog::error("the output of rank {} can't be kept: {}", rank->rank, std::generic_category().message(errno));
      return;
    }
    done += static_cast<size_t>(count);
    rank->spooled += count;
  }
}

void Agent::ReadOutput(Rank* rank) {
  char buffer[65536];
  const ssize_t count = read(rank->output.get(), buffer, sizeof(buffer));
  if (count > 0) {
    Spool(rank, buffer, static_cast<size_t>(count));
    log_shipper_->Wake();
  } else if (count == 0) {
    rank->output.Close();
  }
}

void Agent::ReadReports(Attempt* attempt, Rank* rank) {
  char buffer[65536];
  const ssize_t count = read(rank->report.get(), buffer, sizeof(buffer));
  if (count < 0) return;
  if (count == 0) return rank->report.Close();
  std::vector<v1::TrainerEvent> events;
  std::vector<std::string> bad;
  ParseReports(std::string(buffer, static_cast<size_t>(count)), rank, &events, &bad);
  for (const std::string& text : bad) {
    const std::string line = absl::StrCat("mp-worker: ", text, "\n");
    Spool(rank, line.data(), line.size());
  }
  for (v1::TrainerEvent& event : events) {
    if (event.has_checkpoint_request()) {
      rank->question = event.checkpoint_request();
      AskCheckpoint(*attempt, *rank);
      continue;
    }
    if (event.has_failed()) rank->failed = event.failed();
    rank->events.push_back(std::move(event));
  }
  event_shipper_->Wake();
  if (!bad.empty()) log_shipper_->Wake();
}

void Agent::Reap() {
  int status = 0;
  pid_t pid = 0;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    for (auto& [key, attempt] : attempts_) {
      for (const auto& rank : attempt.ranks) {
        if (rank->pid == pid && !rank->reaped) OnExit(&attempt, rank.get(), status);
      }
    }
  }
}

void Agent::OnExit(Attempt* attempt, Rank* rank, int status) {
  rank->reaped = true;
  kill(-rank->pid, SIGKILL);  // what is left of its group
  // Its last words; the pipes may stay open in processes that escaped, so they are read until empty, not until their
  // end.
  for (int64_t before = -1; rank->output.valid() && rank->spooled != before;) {
    before = rank->spooled;
    ReadOutput(rank);
  }
  for (size_t before = SIZE_MAX; rank->report.valid() && rank->events.size() + rank->report_rest.size() != before;) {
    before = rank->events.size() + rank->report_rest.size();
    ReadReports(attempt, rank);
  }
  rank->command.Close();
  v1::RankExited exited;
  *exited.mutable_id() = attempt->prepare.id();
  exited.set_rank(rank->rank);
  exited.set_exit_code(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  exited.set_signal(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  const std::string where = absl::StrCat(Describe(status), " on ", options_.node_name);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    exited.set_cause(v1::END_CAUSE_SUCCEEDED);
  } else if (rank->failed) {
    exited.set_cause(rank->failed->cause() == v1::END_CAUSE_UNSPECIFIED ? v1::END_CAUSE_RANK_DIED
                                                                        : rank->failed->cause());
    exited.set_message(absl::StrCat(rank->failed->message(),
                                    rank->failed->step() > 0 ? absl::StrCat(" (step ", rank->failed->step(), ")") : "",
                                    ", on ", options_.node_name));
  } else if (!rank->stopped_by_us) {
    exited.set_cause(v1::END_CAUSE_RANK_DIED);
    exited.set_message(where);
  }
  spdlog::info("job {}: rank {}: {}", attempt->prepare.id().job(), rank->rank, where);
  rank->exited = exited;
  v1::WorkerMessage message;
  *message.mutable_rank_exited() = std::move(exited);
  Send(message);
}

void Agent::Clear() {
  std::vector<pid_t> ranks;
  for (const auto& [key, attempt] : attempts_) {
    for (const auto& rank : attempt.ranks) {
      if (!rank->reaped) ranks.push_back(rank->pid);
    }
  }
  bool quiet = ranks.empty();
  for (auto& [key, attempt] : attempts_) {
    if (attempt.ended || !(attempt.launched || attempt.stopping)) continue;
    const bool reaped =
        std::all_of(attempt.ranks.begin(), attempt.ranks.end(), [](const auto& rank) { return rank->reaped; });
    if (!reaped) continue;
    if (!attempt.all_gone) {
      bool left = false;
      for (const auto& rank : attempt.ranks) {
        for (const pid_t pid : FindByToken(rank->token, false)) {
          kill(pid, SIGKILL);
          left = true;
        }
      }
      // Orphans without the mark can be told apart only when no rank is alive that may own them.
      if (quiet && !attempt.ranks.empty()) {
        for (const pid_t pid : FindStrayChildren(ranks)) {
          kill(pid, SIGKILL);
          left = true;
        }
      }
      if (left) continue;
      attempt.all_gone = true;
      attempt.ship_until = MonotonicNow() + absl::Seconds(5);
      for (const auto& rank : attempt.ranks) {
        while (rank->output.valid() && rank->spooled >= 0) {
          const int64_t before = rank->spooled;
          ReadOutput(rank.get());
          if (rank->spooled == before) break;
        }
      }
    }
    const bool shipped =
        std::all_of(attempt.ranks.begin(), attempt.ranks.end(), [](const auto& rank) { return rank->Shipped(); });
    if (!shipped && MonotonicNow() < attempt.ship_until) continue;
    attempt.ended = true;
    attempt.kill_at = absl::InfiniteFuture();
    v1::WorkerMessage message;
    *message.mutable_attempt_ended()->mutable_id() = attempt.prepare.id();
    Send(message);
  }
}

}  // namespace mp::agent
