#include "worker/agent/agent.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/agent/process_tree.h"

namespace mp::agent {
namespace {

std::string RandomId() {
  std::random_device device;
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = device();
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return absl::BytesToHexString(bytes);
}

constexpr absl::Duration kStopGrace = absl::Seconds(5);

}  // namespace

absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

Agent::Agent(AgentOptions options, HostDevices devices)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      instance_id_(RandomId()),
      token_prefix_(absl::StrCat(std::filesystem::weakly_canonical(options_.data_dir).string(), "#")),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  children_ = OwnedFd(signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  checker_ = std::thread([this] {
    while (true) {
      std::function<void()> check;
      {
        const absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](Agent* agent) ABSL_NO_THREAD_SAFETY_ANALYSIS { return agent->stopping_ || !agent->checks_.empty(); },
            this));
        if (checks_.empty()) return;
        check = std::move(checks_.front());
        checks_.pop_front();
      }
      check();
    }
  });
}

Agent::~Agent() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  session_.reset();
  log_shipper_.reset();
  event_shipper_.reset();
  checker_.join();
}

void Agent::Post(std::function<void()> work) {
  {
    const absl::MutexLock lock(&mutex_);
    posted_.push_back(std::move(work));
  }
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) < 0) spdlog::error("eventfd: {}", std::generic_category().message(errno));
}

Agent::Attempt* Agent::Find(const v1::AttemptId& id) {
  const auto it = attempts_.find(KeyOf(id));
  return it == attempts_.end() ? nullptr : &it->second;
}

void Agent::Send(const v1::WorkerMessage& message) {
  if (session_ != nullptr) session_->Send(message);
}

void Agent::RemoveLeftovers() {
  // Ranks of an earlier worker die with it; children that they had made may not.
  for (const pid_t pid : FindByToken(token_prefix_, true)) {
    spdlog::warn("ending process {}, left by an earlier worker", pid);
    kill(pid, SIGKILL);
  }
  std::error_code error;
  std::filesystem::remove_all(options_.data_dir + "/attempts", error);
}

absl::Status Agent::Run() {
  RemoveLeftovers();
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(options_.controller);
  stub_ = v1::WorkerService::NewStub(channel);
  log_shipper_ = std::make_unique<Shipper<v1::ShipLogsRequest, v1::ShipLogsResponse>>(
      Shipper<v1::ShipLogsRequest, v1::ShipLogsResponse>::Callbacks{
          [this](grpc::ClientContext* context) { return stub_->ShipLogs(context); }, [this] { return NextLogs(); },
          [this](const v1::ShipLogsResponse& response) { LogsAcknowledged(response); }});
  event_shipper_ = std::make_unique<Shipper<v1::ShipEventsRequest, v1::ShipEventsResponse>>(
      Shipper<v1::ShipEventsRequest, v1::ShipEventsResponse>::Callbacks{
          [this](grpc::ClientContext* context) { return stub_->ShipEvents(context); }, [this] { return NextEvents(); },
          [this](const v1::ShipEventsResponse& response) { EventsAcknowledged(response); }});
  auto session = std::make_unique<Session>(
      channel,
      Session::Handlers{[this] { return MakeRegister(); },
                        [this](const v1::ControllerMessage& message) { Post([this, message] { Receive(message); }); },
                        [this](const grpc::Status& status) {
                          Post([this, status] {
                            const absl::MutexLock lock(&mutex_);
                            registered_ = false;
                            next_heartbeat_ = absl::InfiniteFuture();
                            if (stopping_) return;
                            spdlog::warn("no connection to the controller: {}", status.error_message());
                            const bool refused = status.error_code() == grpc::StatusCode::ALREADY_EXISTS ||
                                                 status.error_code() == grpc::StatusCode::INVALID_ARGUMENT;
                            if (refused && !registered_once_) {
                              end_ = absl::FailedPreconditionError(status.error_message());
                              stopping_ = true;
                            }
                          });
                        }});
  {
    const absl::MutexLock lock(&mutex_);
    session_ = std::move(session);
  }
  Loop();
  const absl::MutexLock lock(&mutex_);
  return end_;
}

void Agent::Stop() {
  Post([this] {
    const absl::MutexLock lock(&mutex_);
    spdlog::info("ending; {} attempt(s) are held", attempts_.size());
    stopping_ = true;
    for (auto& [key, attempt] : attempts_) StopAttempt(&attempt, kStopGrace);
  });
}

void Agent::Loop() {
  while (true) {
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}, {children_.get(), POLLIN, 0}};
    std::vector<std::pair<Attempt*, Rank*>> owners;
    int timeout = 0;
    {
      const absl::MutexLock lock(&mutex_);
      if (stopping_) {
        const bool done = std::all_of(attempts_.begin(), attempts_.end(),
                                      [](const auto& entry) { return entry.second.ended || !entry.second.launched; });
        if (done) return;
      }
      constexpr size_t kMaxPending = 20000;  // events that wait for the controller; then the rank waits on its pipe
      for (auto& [key, attempt] : attempts_) {
        for (const auto& rank : attempt.ranks) {
          if (rank->output.valid()) {
            fds.push_back({rank->output.get(), POLLIN, 0});
            owners.emplace_back(&attempt, rank.get());
          }
          if (rank->report.valid() && rank->events.size() < kMaxPending) {
            fds.push_back({rank->report.get(), POLLIN, 0});
            owners.emplace_back(&attempt, rank.get());
          }
        }
      }
      timeout = PollTimeoutMilliseconds();
    }
    if (poll(fds.data(), fds.size(), timeout) < 0 && errno != EINTR) {
      spdlog::error("poll: {}", std::generic_category().message(errno));
      return;
    }
    if (fds[0].revents != 0) {
      uint64_t count = 0;
      while (read(wake_.get(), &count, sizeof(count)) > 0) {
      }
    }
    {
      const absl::MutexLock lock(&mutex_);
      for (size_t i = 2; i < fds.size(); ++i) {
        if (fds[i].revents == 0) continue;
        auto& [attempt, rank] = owners[i - 2];
        if (fds[i].fd == rank->output.get()) {
          ReadOutput(rank);
        } else {
          ReadReports(attempt, rank);
        }
      }
      if (fds[1].revents != 0) {
        signalfd_siginfo info;
        while (read(children_.get(), &info, sizeof(info)) > 0) {
        }
      }
      Reap();
    }
    while (true) {
      std::function<void()> work;
      {
        const absl::MutexLock lock(&mutex_);
        if (posted_.empty()) break;
        work = std::move(posted_.front());
        posted_.pop_front();
      }
      work();
    }
    const absl::MutexLock lock(&mutex_);
    OnTime();
    Clear();
  }
}

int Agent::PollTimeoutMilliseconds() {
  const absl::Time now = MonotonicNow();
  absl::Time next = std::min(next_heartbeat_, now + absl::Minutes(1));
  if (lease_ < absl::InfiniteDuration() && !attempts_.empty()) next = std::min(next, last_ack_ + lease_);
  for (const auto& [key, attempt] : attempts_) {
    next = std::min({next, attempt.kill_at, attempt.ended ? absl::InfiniteFuture() : attempt.ship_until});
    // Processes that hide from the first kill are looked for again.
    const bool reaped =
        std::all_of(attempt.ranks.begin(), attempt.ranks.end(), [](const auto& rank) { return rank->reaped; });
    if (attempt.launched && reaped && !attempt.all_gone) next = std::min(next, now + absl::Milliseconds(50));
  }
  return static_cast<int>(
      std::max<int64_t>(0, absl::ToInt64Milliseconds(absl::Ceil(next - now, absl::Milliseconds(1)))));
}

void Agent::OnTime() {
  const absl::Time now = MonotonicNow();
  if (registered_ && now >= next_heartbeat_) {
    next_heartbeat_ = now + heartbeat_interval_;
    v1::WorkerMessage message;
    message.mutable_heartbeat()->set_sequence(++heartbeat_);
    Send(message);
  }
  if (!attempts_.empty() && lease_ < absl::InfiniteDuration() && now >= last_ack_ + lease_) {
    // The controller may have given our devices to others: nothing of ours may go on.
    for (auto& [key, attempt] : attempts_) {
      if (attempt.all_gone) continue;
      spdlog::warn("no word from the controller for {}: ending the ranks of {}", absl::FormatDuration(lease_),
                   attempt.prepare.id().job());
      StopAttempt(&attempt, absl::ZeroDuration());
    }
    last_ack_ = now;  // asked again only after another lease
  }
  for (auto& [key, attempt] : attempts_) {
    if (now < attempt.kill_at) continue;
    attempt.kill_at = absl::InfiniteFuture();
    for (const auto& rank : attempt.ranks) {
      if (!rank->reaped) kill(-rank->pid, SIGKILL);
    }
  }
}

}  // namespace mp::agent
