// mp-controller: accepts, places and watches jobs.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/utf8.h"
#include "server/controller.h"

namespace {

constexpr char kExamples[] = R"(
Examples:
  mp-controller --data-dir /var/lib/mp --listen 0.0.0.0:7070 --shared-root /shared
  mp-controller --data-dir /tmp/mp --listen 127.0.0.1:0 --address-file /tmp/mp/address.json

SIGTERM or SIGINT ends it; jobs go on under their workers' leases, and a controller started within the lease takes them over.
Exit status: 0 ended by a signal, 1 could not start, 2 usage.)";

// For CLI11: "60s", "5m", "500ms".
std::string CheckDuration(const std::string& text) {
  absl::Duration duration;
  return absl::ParseDuration(text, &duration) && duration > absl::ZeroDuration()
             ? ""
             : "a duration such as 60s or 5m was expected, not " + text;
}

absl::Duration ToDuration(const std::string& text) {
  absl::Duration duration;
  absl::ParseDuration(text, &duration);
  return duration;
}

bool WriteAddressFile(const std::string& path, const mp::Controller& controller) {
  const std::string aside = path + ".tmp";
  {
    std::ofstream file(aside);
    file << "{\"address\": \"" << controller.address() << "\", \"metrics_address\": \"" << controller.metrics_address()
         << "\", \"pid\": " << getpid() << "}\n";
    if (!file.flush()) return false;
  }
  return std::rename(aside.c_str(), path.c_str()) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Blocked before any thread is started, so that only sigwait sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  spdlog::set_default_logger(spdlog::stderr_color_mt("mp-controller"));

  mp::ControllerOptions options;
  std::string lease = "60s";
  std::string heartbeat = "5s";
  std::string start_timeout = "120s";
  std::string stop_grace = "5s";
  std::string address_file;
  CLI::App app{
      "mp-controller: accepts training jobs over gRPC, places them on workers, keeps their state and metrics."};
  app.footer(kExamples);
  app.set_version_flag("--version", "mp-controller " MP_VERSION);
  const CLI::Validator duration(CheckDuration, "DURATION", "duration");
  app.add_option("--data-dir", options.data_dir, "Folder for the databases and logs")->required();
  app.add_option("--listen", options.listen, "HOST:PORT of gRPC; port 0: any free one")->capture_default_str();
  app.add_option("--metrics-listen", options.metrics_listen, "HOST:PORT of /metrics; port 0: any free one; empty: none")
      ->capture_default_str();
  app.add_option("--lease", lease, "How long a worker may be out of touch before its ranks are given up")
      ->check(duration)
      ->capture_default_str();
  app.add_option("--heartbeat", heartbeat, "Interval of workers' heartbeats")->check(duration)->capture_default_str();
  app.add_option("--start-timeout", start_timeout, "Time for all ranks of a gang to come up")
      ->check(duration)
      ->capture_default_str();
  app.add_option("--stop-grace", stop_grace, "Time between SIGTERM and SIGKILL")
      ->check(duration)
      ->capture_default_str();
  app.add_option("--shared-root", options.coordinator.shared_root,
                 "Folder that every host sees, for relative paths of specs; default: the submitter's directory");
  app.add_option("--address-file", address_file, "Write the addresses here as JSON once serving");
  if (const std::string why = mp::WhyArgumentsAreNotUtf8(argc, argv); !why.empty()) {
    std::fprintf(stderr, "mp-controller: %s\n", why.c_str());
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options.coordinator.lease = ToDuration(lease);
  options.coordinator.heartbeat_interval = ToDuration(heartbeat);
  options.coordinator.start_timeout = ToDuration(start_timeout);
  options.coordinator.stop_grace = ToDuration(stop_grace);

  absl::StatusOr<std::unique_ptr<mp::Controller>> controller = mp::Controller::Start(options);
  if (!controller.ok()) {
    std::fprintf(stderr, "mp-controller: %s\n", std::string(controller.status().message()).c_str());
    return 1;
  }
  if (!address_file.empty() && !WriteAddressFile(address_file, **controller)) {
    std::fprintf(stderr, "mp-controller: --address-file %s can't be written\n", address_file.c_str());
    return 1;
  }
  spdlog::info("serving on {}, metrics on {}", (*controller)->address(), (*controller)->metrics_address());
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("ending on signal {}", signal);
  (*controller)->Stop();
  return 0;
}
