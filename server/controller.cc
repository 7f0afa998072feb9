#include "server/controller.h"

#include <fcntl.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <prometheus/exposer.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/api/change_hub.h"
#include "server/api/services.h"
#include "server/store/sqlite/sqlite_store.h"

namespace mp {
namespace {

absl::Duration Monotonic() { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

// Holds the data directory for this process; the system lets go when it ends in any way.
class DirectoryLock {
 public:
  static absl::StatusOr<DirectoryLock> Take(const std::string& directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) return absl::FailedPreconditionError(absl::StrCat("--data-dir ", directory, ": ", error.message()));
    const std::string path = directory + "/lock";
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return absl::ErrnoToStatus(errno, path);
    DirectoryLock lock(fd);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("--data-dir ", directory, " is in use by another mp-controller"));
    }
    return lock;
  }
  DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock() {
    if (fd_ >= 0) close(fd_);
  }

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  int fd_;
};

// Brings the gauges over all jobs and nodes up to date when Prometheus asks.
class Scrape : public prometheus::Collectable {
 public:
  Scrape(Coordinator* coordinator, Exposition* exposition) : coordinator_(coordinator), exposition_(exposition) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    exposition_->Update(coordinator_->AllJobs(), coordinator_->AllNodes(), absl::Now());
    return exposition_->registry()->Collect();
  }

 private:
  Coordinator* const coordinator_;
  Exposition* const exposition_;
};

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

absl::Status CheckAddress(const char* flag, const std::string& address) {
  int port = 0;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", address, ": HOST:PORT was expected, for example 127.0.0.1:7070"));
  }
  return absl::OkStatus();
}

}  // namespace

struct Controller::Impl {
  explicit Impl(DirectoryLock lock_in) : lock(std::move(lock_in)) {}

  ~Impl() {
    StopTicking();
    exposer.reset();
    if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
  }

  // Somebody changed something: streams may have to send, deadlines may be nearer.
  void OnChange() {
    hub.Notify();
    const absl::MutexLock lock_guard(&mutex);
    poked = true;
  }

  void KeepTime() {
    while (true) {
      const absl::Duration wait = std::max(absl::ZeroDuration(), coordinator->NextDeadline() - Monotonic());
      {
        const absl::MutexLock lock_guard(&mutex);
        mutex.AwaitWithTimeout(
            absl::Condition(
                +[](Impl* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->poked || self->stopping; }, this),
            wait);
        if (stopping) return;
        poked = false;
      }
      if (coordinator->NextDeadline() <= Monotonic()) coordinator->Tick();
    }
  }

  void StopTicking() {
    {
      const absl::MutexLock lock_guard(&mutex);
      stopping = true;
    }
    if (ticker.joinable()) ticker.join();
  }

  absl::Status Open(const ControllerOptions& options) {
    absl::StatusOr<std::unique_ptr<Store>> opened = OpenSqliteStore(options.data_dir + "/controller.db");
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
    absl::StatusOr<std::unique_ptr<MetricStore>> opened_metrics = MetricStore::Open(options.data_dir + "/telemetry.db");
    if (!opened_metrics.ok()) return opened_metrics.status();
    metrics = *std::move(opened_metrics);
    logs = std::make_unique<LogStore>(options.data_dir + "/logs");
    coordinator =
        std::make_unique<Coordinator>(store.get(), options.coordinator, Clock{[] { return absl::Now(); }, Monotonic},
                                      [this](const std::string&) { OnChange(); });
    return coordinator->Start();
  }

  absl::Status Serve(const ControllerOptions& options) {
    const ServiceParts parts = {coordinator.get(), metrics.get(), logs.get(), &exposition, &hub};
    services.push_back(MakeJobService(parts));
    services.push_back(MakeNodeService(parts));
    services.push_back(MakeMetricsService(parts));
    services.push_back(MakeLogService(parts));
    services.push_back(MakeWorkerService(parts));
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
    // Two controllers must not share a port in silence.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // Not above the workers' keepalive interval, or their streams end with too_many_pings.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.SetMaxReceiveMessageSize(64 << 20);
    for (const auto& service : services) builder.RegisterService(service.get());
    server = builder.BuildAndStart();
    if (server == nullptr || port == 0)
      return absl::UnavailableError(
          absl::StrCat("--listen ", options.listen, " can't be bound; is another program on that port?"));
    address = absl::StrCat(HostOf(options.listen), ":", port);
    return absl::OkStatus();
  }

  absl::Status Expose(const ControllerOptions& options) {
    if (options.metrics_listen.empty()) return absl::OkStatus();
    scrape = std::make_shared<Scrape>(coordinator.get(), &exposition);
    try {
      exposer = std::make_unique<prometheus::Exposer>(options.metrics_listen, 1);
    } catch (const std::exception& error) {
      return absl::UnavailableError(absl::StrCat("--metrics-listen ", options.metrics_listen,
                                                 " can't be bound; is another program on that port?"));
    }
    exposer->RegisterCollectable(scrape);
    const std::vector<int> ports = exposer->GetListeningPorts();
    metrics_address = absl::StrCat(HostOf(options.metrics_listen), ":", ports.empty() ? 0 : ports.front());
    return absl::OkStatus();
  }

  DirectoryLock lock;
  ChangeHub hub;
  std::unique_ptr<Store> store;
  std::unique_ptr<MetricStore> metrics;
  std::unique_ptr<LogStore> logs;
  Exposition exposition;
  std::unique_ptr<Coordinator> coordinator;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
  std::shared_ptr<Scrape> scrape;
  std::unique_ptr<prometheus::Exposer> exposer;
  std::string address;
  std::string metrics_address;

  absl::Mutex mutex;
  bool poked ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::thread ticker;
};

Controller::Controller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Controller::~Controller() = default;

absl::StatusOr<std::unique_ptr<Controller>> Controller::Start(const ControllerOptions& options) {
  if (absl::Status status = CheckAddress("--listen", options.listen); !status.ok()) return status;
  if (!options.metrics_listen.empty()) {
    if (absl::Status status = CheckAddress("--metrics-listen", options.metrics_listen); !status.ok()) return status;
  }
  absl::StatusOr<DirectoryLock> lock = DirectoryLock::Take(options.data_dir);
  if (!lock.ok()) return lock.status();
  auto impl = std::make_unique<Impl>(*std::move(lock));
  if (absl::Status status = impl->Open(options); !status.ok()) return status;
  if (absl::Status status = impl->Serve(options); !status.ok()) return status;
  if (absl::Status status = impl->Expose(options); !status.ok()) return status;
  Impl* parts = impl.get();
  impl->ticker = std::thread([parts] { parts->KeepTime(); });
  return std::unique_ptr<Controller>(
      new Controller(std::move(impl)));  // NOLINT(cppcoreguidelines-owning-memory): private constructor
}

const std::string& Controller::address() const { return impl_->address; }
const std::string& Controller::metrics_address() const { return impl_->metrics_address; }

void Controller::Stop() {
  impl_->server->GetHealthCheckService()->SetServingStatus(false);
  impl_->StopTicking();
  // Streams are cancelled at the deadline; their reactors finish themselves.
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
}

}  // namespace mp
