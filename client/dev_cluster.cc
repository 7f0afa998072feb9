#include "client/dev_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/address.h"
#include "client/dev_process.h"
#include "client/output.h"

namespace mp::client {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct DevState {
  std::string address;
  std::string metrics_address;
  std::string data_dir;
  std::vector<DevProcess> processes;
};

json ToJsonState(const DevState& state) {
  json processes = json::array();
  for (const DevProcess& p : state.processes)
    processes.push_back({{"name", p.name}, {"pid", p.pid}, {"start_time", p.start_time}, {"log", p.log}});
  return {{"address", state.address},
          {"metrics_address", state.metrics_address},
          {"data_dir", state.data_dir},
          {"processes", processes}};
}

// An absent or damaged file is a cluster without processes.
DevState ReadState() {
  DevState state;
  std::ifstream file(DevStateFile());
  const json stored = json::parse(file, nullptr, false);
  if (!stored.is_object()) return state;
  try {
    state.address = stored.value("address", "");
    state.metrics_address = stored.value("metrics_address", "");
    state.data_dir = stored.value("data_dir", "");
    for (const json& p : stored.value("processes", json::array())) {
      state.processes.push_back({p.at("name"), p.at("pid"), p.at("start_time"), p.at("log")});
    }
  } catch (const json::exception&) {
    return DevState{};
  }
  return state;
}

absl::Status WriteState(const DevState& state) {
  const std::string path = DevStateFile();
  const std::string aside = path + ".tmp";
  {
    std::ofstream file(aside);
    file << ToJsonState(state).dump(1) << "\n";
    if (!file.flush()) return absl::ErrnoToStatus(errno, aside);
  }
  return std::rename(aside.c_str(), path.c_str()) == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, path);
}

// Only one `mpctl dev` changes the cluster at a time.
class DevLock {
 public:
  static absl::StatusOr<DevLock> Take() {
    std::error_code error;
    fs::create_directories(fs::path(DevStateFile()).parent_path(), error);
    const std::string path = DevStateFile() + ".lock";
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return absl::ErrnoToStatus(errno, path);
    DevLock lock(fd);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
      return absl::FailedPreconditionError("another `mpctl dev` is at work; try again when it has ended");
    return lock;
  }
  DevLock(DevLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  DevLock& operator=(DevLock&&) = delete;
  ~DevLock() {
    if (fd_ >= 0) close(fd_);
  }

 private:
  explicit DevLock(int fd) : fd_(fd) {}
  int fd_;
};

// Waits until `path` exists, in a folder that exists; an error when the process ends before or the time is over.
absl::Status WaitForFile(const std::string& path, const DevProcess& process, absl::Time deadline) {
  const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  const auto closer = absl::MakeCleanup([watch] { close(watch); });
  inotify_add_watch(watch, fs::path(path).parent_path().c_str(), IN_MOVED_TO);
  while (!fs::exists(path)) {
    if (!IsRunning(process))
      return absl::InternalError(
          absl::StrCat(process.name, " ended at once; its log, ", process.log, ":\n", LastLines(process.log, 10)));
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError(absl::StrCat(process.name, " was not ready in time; its log, ", process.log,
                                                      ":\n", LastLines(process.log, 10)));
    // The file wakes us; the half second is for a process that ends without a word.
    pollfd ready = {watch, POLLIN, 0};
    poll(&ready, 1, 500);
    char buffer[4096];
    while (read(watch, buffer, sizeof(buffer)) > 0) {
    }
  }
  return absl::OkStatus();
}

DevProcess* Find(DevState* state, const std::string& name) {
  for (DevProcess& process : state->processes) {
    if (process.name == name) return &process;
  }
  return nullptr;
}

std::string Addresses(const DevState& state) {
  return absl::StrCat("controller:  ", state.address, "\nmetrics:     http://", state.metrics_address,
                      "/metrics\ndata:        ", state.data_dir, "\nlogs:        ", state.data_dir, "/log\n");
}

class Starter {
 public:
  Starter(const DevOptions& options, DevState* state)
      : options_(options), state_(state), deadline_(absl::Now() + options.timeout) {}

  absl::Status Controller() {
    if (const DevProcess* known = Find(state_, "controller"); known != nullptr && IsRunning(*known))
      return absl::OkStatus();
    const std::string address_file = state_->data_dir + "/controller.json";
    fs::remove(address_file);
    // The same ports as before, so that workers and clients find it again.
    const std::string listen = state_->address.empty() ? options_.listen : state_->address;
    const std::string metrics = state_->metrics_address.empty() ? options_.metrics_listen : state_->metrics_address;
    absl::Status status = Start(
        "controller",
        {Program("mp-controller"), "--data-dir", state_->data_dir + "/controller", "--listen", listen,
         "--metrics-listen", metrics, "--lease", options_.lease, "--heartbeat", "2s", "--address-file", address_file},
        address_file);
    if (!status.ok()) return status;
    std::ifstream file(address_file);
    const json addresses = json::parse(file, nullptr, false);
    if (!addresses.is_object()) return absl::InternalError(absl::StrCat(address_file, " can't be read"));
    state_->address = addresses.value("address", "");
    state_->metrics_address = addresses.value("metrics_address", "");
    return absl::OkStatus();
  }

  absl::Status Worker(int index) {
    const std::string name = absl::StrCat("worker-", index);
    if (const DevProcess* known = Find(state_, name); known != nullptr && IsRunning(*known)) return absl::OkStatus();
    const std::string ready_file = absl::StrCat(state_->data_dir, "/", name, ".json");
    fs::remove(ready_file);
    return Start(name,
                 {Program("mp-worker"), "--controller", state_->address, "--data-dir",
                  absl::StrCat(state_->data_dir, "/", name), "--node-name", name, "--node-class", "CPU", "--devices",
                  absl::StrCat(options_.devices_per_worker), "--address", "127.0.0.1", "--ready-file", ready_file},
                 ready_file);
  }

  const std::vector<DevProcess>& started() const { return started_; }

 private:
  std::string Program(const std::string& name) const { return absl::StrCat(options_.bin_dir, "/", name); }

  absl::Status Start(const std::string& name, const std::vector<std::string>& argv, const std::string& ready_file) {
    absl::StatusOr<DevProcess> process =
        StartDetached(name, argv, absl::StrCat(state_->data_dir, "/log/", name, ".log"));
    if (!process.ok()) return process.status();
    started_.push_back(*process);
    if (DevProcess* known = Find(state_, name); known != nullptr) {
      *known = *process;
    } else {
      state_->processes.push_back(*process);
    }
    // Recorded before anything is waited for: `down` must know it whatever happens to us.
    if (absl::Status status = WriteState(*state_); !status.ok()) return status;
    return WaitForFile(ready_file, *process, deadline_);
  }

  const DevOptions& options_;
  DevState* const state_;
  const absl::Time deadline_;
  std::vector<DevProcess> started_;
};

}  // namespace

absl::Status DevUp(const DevOptions& given) {
  absl::StatusOr<DevLock> lock = DevLock::Take();
  if (!lock.ok()) return lock.status();
  DevOptions options = given;
  std::error_code error;
  if (options.bin_dir.empty()) options.bin_dir = fs::read_symlink("/proc/self/exe", error).parent_path().string();
  DevState state = ReadState();
  const bool running = std::any_of(state.processes.begin(), state.processes.end(), IsRunning);
  const std::string data_dir = options.data_dir.empty() ? (fs::path(DevStateFile()).parent_path() / "dev").string()
                                                        : fs::absolute(options.data_dir).lexically_normal().string();
  if (running && !options.data_dir.empty() && data_dir != state.data_dir) {
    return absl::FailedPreconditionError(
        absl::StrCat("a cluster is running with --data-dir ", state.data_dir, "; `mpctl dev down` ends it"));
  }
  if (!running) state = DevState{"", "", data_dir, {}};
  fs::create_directories(state.data_dir + "/log", error);
  if (error) return absl::FailedPreconditionError(absl::StrCat("--data-dir ", state.data_dir, ": ", error.message()));

  Starter starter(options, &state);
  absl::Status status = starter.Controller();
  // Workers that were recorded come back too, however many this call asks for.
  int workers = options.workers;
  for (const DevProcess& process : state.processes) workers += process.name == absl::StrCat("worker-", workers) ? 1 : 0;
  for (int i = 0; i < workers && status.ok(); ++i) status = starter.Worker(i);
  if (status.ok()) status = WriteState(state);
  if (!status.ok()) {
    EndAll(starter.started(), absl::Seconds(5));
    if (!running) fs::remove(DevStateFile(), error);
    return status;
  }
  if (starter.started().empty()) {
    std::printf("the cluster is running already (%d worker(s))\n%s", workers, Addresses(state).c_str());
  } else if (running) {
    std::string names;
    for (const DevProcess& process : starter.started())
      absl::StrAppend(&names, names.empty() ? "" : ", ", process.name);
    std::printf("the cluster was running; started again: %s\n%s", names.c_str(), Addresses(state).c_str());
  } else {
    std::printf("started a controller and %d worker(s)\n%s", workers, Addresses(state).c_str());
  }
  return absl::OkStatus();
}

absl::Status DevDown() {
  absl::StatusOr<DevLock> lock = DevLock::Take();
  if (!lock.ok()) return lock.status();
  const DevState state = ReadState();
  std::vector<DevProcess> workers;
  std::vector<DevProcess> controller;
  for (const DevProcess& process : state.processes) {
    if (!IsRunning(process)) continue;
    (process.name == "controller" ? controller : workers).push_back(process);
  }
  // Workers first: they end their ranks and say so.
  EndAll(workers, absl::Seconds(15));
  EndAll(controller, absl::Seconds(5));
  std::error_code error;
  fs::remove(DevStateFile(), error);
  if (workers.empty() && controller.empty()) {
    std::printf("no cluster is running\n");
  } else {
    std::printf("ended the cluster; its data stays in %s\n", state.data_dir.c_str());
  }
  return absl::OkStatus();
}

absl::Status DevStatus() {
  const DevState state = ReadState();
  if (state.processes.empty()) return absl::FailedPreconditionError("no cluster is running; `mpctl dev up` starts one");
  std::vector<std::vector<std::string>> rows = {{"NAME", "PID", "STATE", "LOG"}};
  for (const DevProcess& process : state.processes)
    rows.push_back({process.name, absl::StrCat(process.pid), IsRunning(process) ? "running" : "ended", process.log});
  std::printf("%s%s", Addresses(state).c_str(), Table(rows).c_str());
  return absl::OkStatus();
}

}  // namespace mp::client
