#include "worker/trainer/report/reporter.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include "worker/trainer/json/json.h"
#include "worker/trainer/report/event_lines.h"

namespace mp::trainer {
namespace {

double UnixTime() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

const char* KindName(fp8::TensorKind kind) {
  switch (kind) {
    case fp8::TensorKind::kInput:
      return "INPUT";
    case fp8::TensorKind::kWeight:
      return "WEIGHT";
    case fp8::TensorKind::kGradOutput:
      return "GRAD_OUTPUT";
  }
  return "KIND_UNSPECIFIED";
}

}  // namespace

struct Reporter::Impl {
  int rank;
  int report_fd;
  int command_fd;
  std::function<void()> on_orphaned;
  int wake_fd;
  std::thread reader;
  std::mutex write_mutex;
  std::mutex mutex;
  std::condition_variable changed;
  bool save_requested = false;                            // guarded by mutex
  std::optional<std::pair<int64_t, std::string>> answer;  // step, "" or why not; guarded by mutex
  bool granted = false;                                   // guarded by mutex
  bool orphaned = false;                                  // guarded by mutex

  Impl(int rank_in, int report, int command, std::function<void()> orphaned_in)
      : rank(rank_in), report_fd(report), command_fd(command), on_orphaned(std::move(orphaned_in)) {
    wake_fd = eventfd(0, EFD_CLOEXEC);
    if (command_fd >= 0) reader = std::thread([this] { ReadCommands(); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() {
    const uint64_t one = 1;
    if (wake_fd >= 0 && write(wake_fd, &one, sizeof(one)) < 0) std::perror("mp-trainer: eventfd");
    if (reader.joinable()) reader.join();
    if (wake_fd >= 0) close(wake_fd);
  }

  void Orphaned() {
    {
      const std::lock_guard lock(mutex);
      if (orphaned) return;
      orphaned = true;
    }
    changed.notify_all();
    if (on_orphaned) on_orphaned();
  }

  void Send(const std::string& field) {
    const std::string line = EventLine(UnixTime(), rank, field);
    bool lost = false;
    {
      const std::lock_guard lock(write_mutex);
      size_t done = 0;
      while (done < line.size()) {
        const ssize_t count = write(report_fd, line.data() + done, line.size() - done);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
          lost = true;
          break;
        }
        done += static_cast<size_t>(count);
      }
    }
    if (lost) Orphaned();
  }

  void ReadCommands() {
    std::string pending;
    char buffer[4096];
    while (true) {
      pollfd fds[2] = {{command_fd, POLLIN, 0}, {wake_fd, POLLIN, 0}};
      if (poll(fds, 2, -1) < 0) {
        if (errno == EINTR) continue;
        return;
      }
      if (fds[1].revents != 0) return;
      const ssize_t count = read(command_fd, buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return Orphaned();
      pending.append(buffer, static_cast<size_t>(count));
      size_t end = 0;
      while ((end = pending.find('\n')) != std::string::npos) {
        Handle(pending.substr(0, end));
        pending.erase(0, end + 1);
      }
    }
  }

  void Handle(const std::string& line) {
    try {
      const JsonValue command = ParseJson(line);
      const std::lock_guard lock(mutex);
      if (command.Find("save_checkpoint") != nullptr) save_requested = true;
      if (const JsonValue* permission = command.Find("checkpoint_permission")) {
        const JsonValue* is_granted = permission->Find("granted");
        const JsonValue* reason = permission->Find("reason");
        granted = is_granted != nullptr && is_granted->AsBool();
        answer = {permission->At("step").AsInteger(), reason == nullptr ? "" : reason->AsString()};
      }
    } catch (const JsonError& error) {
      std::fprintf(stderr, "mp-trainer: a command line is ignored: %s\n", error.what());
      return;
    }
    changed.notify_all();
  }
};

Reporter::Reporter(int rank, int report_fd, int command_fd, std::function<void()> on_orphaned)
    : impl_(std::make_unique<Impl>(rank, report_fd, command_fd, std::move(on_orphaned))) {}

Reporter::~Reporter() = default;

void Reporter::Started(int world_size, int64_t parameters) { impl_->Send(StartedField(world_size, parameters)); }

void Reporter::PrecisionPlan(const std::vector<LinearPlan>& plan) {
  std::vector<PlanLine> lines;
  lines.reserve(plan.size());
  for (const LinearPlan& layer : plan) lines.push_back({layer.name, layer.compute, layer.reason});
  impl_->Send(PrecisionPlanField(lines));
}

void Reporter::Frame(int64_t step, const std::map<std::string, double>& scalars,
                     const std::vector<fp8::TensorStatistics>& tensors) {
  std::vector<TensorLine> lines;
  lines.reserve(tensors.size());
  for (const fp8::TensorStatistics& tensor : tensors) {
    lines.push_back({tensor.layer, KindName(tensor.kind), tensor.amax, tensor.scale, tensor.underflow_share,
                     tensor.overflow_share});
  }
  impl_->Send(FrameField(step, scalars, lines));
}

void Reporter::Evaluation(int64_t step, const std::map<std::string, double>& metrics) {
  impl_->Send(EvaluationField(step, metrics));
}

void Reporter::CheckpointSaved(int64_t step, const std::string& path, int64_t bytes, double seconds) {
  impl_->Send(CheckpointSavedField(step, path, bytes, seconds));
}

void Reporter::CheckpointDamaged(const std::string& path, const std::string& reason) {
  impl_->Send(CheckpointDamagedField(path, reason));
}

void Reporter::Resumed(int64_t step, const std::string& path) { impl_->Send(ResumedField(step, path)); }

void Reporter::Finished(int64_t step, const std::map<std::string, double>& metrics) {
  impl_->Send(FinishedField(step, metrics));
}

void Reporter::Failed(EndCause cause, const std::string& message, int64_t step) {
  impl_->Send(FailedField(EndCauseName(cause), message, step));
}

bool Reporter::RequestCheckpoint(int64_t step, const std::string& path, std::string* reason) {
  if (impl_->command_fd < 0) return true;
  impl_->Send(CheckpointRequestField(step, path));
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return impl_->orphaned || (impl_->answer && impl_->answer->first == step); });
  if (!impl_->answer || impl_->answer->first != step) {
    *reason = "the worker is gone";
    return false;
  }
  *reason = impl_->answer->second;
  impl_->answer.reset();
  return impl_->granted;
}

bool Reporter::TakeSaveCommand() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->save_requested, false);
}

}  // namespace mp::trainer
