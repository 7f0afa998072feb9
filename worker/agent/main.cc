// mp-worker: the daemon of one host.
#include <fcntl.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/utf8.h"
#include "worker/agent/agent.h"

namespace {

namespace fs = std::filesystem;

constexpr char kExamples[] = R"(
Examples:
  mp-worker --controller controller:7070 --data-dir /var/lib/mp-worker
  mp-worker --controller 127.0.0.1:7070 --data-dir /tmp/w0 --node-name w0 --address 127.0.0.1 --devices 2

SIGTERM or SIGINT ends its ranks and then itself. Exit status: 0 ended by a signal, 1 could not start or was refused, 2 usage.)";

std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string ProgramFolder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path().string();
}

int Fail(const std::string& message) {
  std::fprintf(stderr, "mp-worker: %s\n", message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  spdlog::set_default_logger(spdlog::stderr_color_mt("mp-worker"));

  mp::agent::AgentOptions options;
  options.node_name = HostName();
  options.trainer = ProgramFolder() + "/mp-trainer";
  options.launcher = ProgramFolder() + "/mp-rank-launcher";
  std::string node_class = "auto";
  std::string declared;
  std::string ready_file;
  int devices = 1;
  std::vector<std::string> labels;
  CLI::App app{"mp-worker: runs the ranks of training jobs on this host."};
  app.footer(kExamples);
  app.set_version_flag("--version", "mp-worker " MP_VERSION);
  app.add_option("--controller", options.controller, "HOST:PORT of the controller")->required();
  app.add_option("--data-dir", options.data_dir, "Folder for output that is not shipped yet; one worker at a time")
      ->required();
  app.add_option("--node-name", options.node_name, "Name of this node, unique in the cluster")->capture_default_str();
  app.add_option("--node-class", node_class, "auto, CPU, P4 or P5")
      ->check(CLI::IsMember({"auto", "CPU", "P4", "P5"}))
      ->capture_default_str();
  app.add_option("--declare-class", declared, "Claim a class without looking for its devices; for tests of placement")
      ->check(CLI::IsMember({"CPU", "P4", "P5"}));
  app.add_option("--devices", devices, "CPU slots (or declared devices)")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--label", labels, "NAME=VALUE; may be repeated");
  app.add_option("--address", options.address,
                 "Name or address under which other hosts reach this one; default: the host name");
  app.add_option("--interface", options.gloo_interface,
                 "Network interface of the ranks' traffic; default: by the route to rank 0");
  app.add_option("--trainer", options.trainer, "Path of mp-trainer")->capture_default_str();
  app.add_option("--ready-file", ready_file, "Write name and process id here as JSON once registered");
  if (const std::string why = mp::WhyArgumentsAreNotUtf8(argc, argv); !why.empty()) {
    std::fprintf(stderr, "mp-worker: %s\n", why.c_str());
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.address.empty()) options.address = HostName();
  for (const std::string& label : labels) {
    const std::vector<std::string> pair = absl::StrSplit(label, absl::MaxSplits('=', 1));
    if (pair.size() != 2 || pair[0].empty()) {
      std::fprintf(stderr, "mp-worker: --label %s: NAME=VALUE was expected\n", label.c_str());
      return 2;
    }
    options.labels[pair[0]] = pair[1];
  }

  std::error_code error;
  fs::create_directories(options.data_dir, error);
  if (error) return Fail(absl::StrCat("--data-dir ", options.data_dir, ": ", error.message()));
  const mp::agent::OwnedFd lock(open((options.data_dir + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.valid() || flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return Fail(absl::StrCat("--data-dir ", options.data_dir, " is in use by another mp-worker"));
  mp::agent::HostDevices host;
  if (declared.empty()) {
    absl::StatusOr<mp::agent::HostDevices> found = mp::agent::FindDevices(node_class, devices);
    if (!found.ok()) return Fail(std::string(found.status().message()));
    host = *std::move(found);
  } else {
    mp::v1::ResourceSpec::NodeClass parsed = mp::v1::ResourceSpec::CPU;
    mp::v1::ResourceSpec::NodeClass_Parse(declared, &parsed);
    host = mp::agent::DeclareDevices(parsed, devices);
  }
  options.on_registered = [ready_file, name = options.node_name] {
    if (ready_file.empty()) return;
    const std::string aside = ready_file + ".tmp";
    std::ofstream(aside) << "{\"node\": \"" << name << "\", \"pid\": " << getpid() << "}\n";
    std::rename(aside.c_str(), ready_file.c_str());
  };

  absl::Status result;
  {
    mp::agent::Agent agent(options, host);
    // The loop's thread lives as long as the process: parent-death signals of ranks follow it.
    const pid_t self = getpid();
    std::thread loop([&] {
      result = agent.Run();
      kill(self, SIGTERM);  // wakes the main thread, when the loop ends by itself
    });
    sigdelset(&signals, SIGCHLD);
    int signal = 0;
    sigwait(&signals, &signal);
    agent.Stop();
    loop.join();
  }
  return result.ok() ? 0 : Fail(std::string(result.message()));
}
