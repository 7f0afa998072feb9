// mpctl: the command line.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>

#include "client/address.h"
#include "client/commands.h"
#include "client/completion.h"
#include "client/dev_cluster.h"
#include "client/exit_code.h"
#include "client/terminal.h"
#include "proto/utf8.h"

namespace {

using namespace mp::client;  // NOLINT(google-build-using-namespace): this file is the program

constexpr char kStates[] = R"(
States: PENDING waits for room; STARTING files are checked and ranks come up; RUNNING every rank has joined;
STOPPING ranks are being ended; SUCCEEDED, FAILED, CANCELLED are final.
)";

// Ctrl-C leaves the job alone: it is the controller's.
void OnInterrupt(int) {
  constexpr char kMessage[] =
      "\nmpctl: detached; the job goes on (`mpctl watch` follows it again, `mpctl cancel` ends it)\n";
  const ssize_t ignored = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  static_cast<void>(ignored);
  _exit(kInterrupted);
}

struct Globals {
  std::string server;
  std::string context;
  std::string timeout = "30s";
  std::string format = "table";
};

// Connects and runs a command.
int WithServer(const Globals& globals, const std::function<int(Connection*)>& command) {
  absl::Duration timeout;
  if (!absl::ParseDuration(globals.timeout, &timeout) || timeout <= absl::ZeroDuration()) {
    std::fprintf(stderr, "mpctl: --timeout %s: a duration such as 30s was expected\n", globals.timeout.c_str());
    return kUsage;
  }
  absl::StatusOr<ServerAddress> server = FindServer(globals.server, globals.context);
  if (!server.ok()) {
    Report(server.status());
    return kUnavailable;
  }
  Connection connection(*std::move(server), timeout);
  return command(&connection);
}

int WithFormat(const Globals& globals, const std::function<int(Format)>& command) {
  const absl::StatusOr<Format> format = ParseFormat(globals.format);
  if (!format.ok()) {
    Report(format.status());
    return kUsage;
  }
  return command(*format);
}

class Program {
 public:
  Program() : app_("mpctl: submits, watches and ends training jobs.") {
    app_.footer(
        std::string(
            "\nExamples:\n  mpctl dev up --workers 2\n  mpctl submit -f job.yaml --watch\n  mpctl get jobs\n\n") +
        kExitCodeHelp + "\nThe controller's address: --server, MP_SERVER, the current context of " + ConfigFile() +
        ", or a cluster of `mpctl dev up`.");
    app_.require_subcommand(1);
    app_.add_option("--server", globals_.server, "HOST:PORT of the controller");
    app_.add_option("--context", globals_.context, "Context of the config file");
    app_.add_option("--timeout", globals_.timeout, "Deadline of each call")->capture_default_str();
    app_.add_flag_callback("--no-color", DisableTerminal, "No colour, no progress bar");
    app_.fallthrough();
    AddSubmit();
    AddGet();
    AddFollowing();
    AddDev();
    CLI::App* version = Add(&app_, "version", "Print the version", "  mpctl version");
    version->callback([this] {
      std::puts("mpctl " MP_VERSION);
      result_ = kOk;
    });
    CLI::App* completion =
        Add(&app_, "completion", "Print a completion script: bash, zsh or fish", "  source <(mpctl completion bash)");
    completion->add_option("shell", shell_, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    completion->callback([this] {
      std::fputs(CompletionScript(app_, shell_).c_str(), stdout);
      result_ = kOk;
    });
  }

  int Run(int argc, char** argv) {
    if (const std::string why = mp::WhyArgumentsAreNotUtf8(argc, argv); !why.empty()) {
      std::fprintf(stderr, "mpctl: %s\n", why.c_str());
      return kUsage;
    }
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app_.exit(error) == 0 ? kOk : kUsage;
    }
    return result_;
  }

 private:
  static CLI::App* Add(CLI::App* parent, const std::string& name, const std::string& description,
                       const std::string& examples) {
    CLI::App* command = parent->add_subcommand(name, description);
    command->footer("\nExamples:\n" + examples);
    return command;
  }

  void AddFormat(CLI::App* command) {
    command->add_option("-o,--output", globals_.format, "table, wide, json, yaml or name")->capture_default_str();
  }

  void AddSubmit() {
    CLI::App* submit = Add(&app_, "submit", "Submit a job",
                           "  mpctl submit -f job.yaml --watch\n  mpctl submit -f job.yaml --dry-run\n  mpctl submit "
                           "-f job.yaml --set training.max_steps=10 --name trial\n  cat job.json | mpctl submit -f -");
    submit->add_option("-f,--file", submit_.file, "Spec in YAML or JSON; - is standard input")->capture_default_str();
    submit->add_option("--set", submit_.overrides, "PATH=VALUE on top of the spec; may be repeated")
        ->allow_extra_args(false);
    submit->add_option("--name", submit_.name, "Name of the job, in place of the spec's");
    submit->add_flag("--watch", submit_.watch, "Follow the job to its end; exit status 6 when it fails");
    submit->add_flag("--dry-run", submit_.dry_run, "Run every check and print the resolved spec");
    submit->add_option("-o,--output", submit_.format, "json, yaml or name");
    submit->callback([this] {
      std::signal(SIGINT, OnInterrupt);
      result_ = WithServer(globals_, [this](Connection* c) { return Submit(c, submit_); });
    });
  }

  void AddGet() {
    CLI::App* get = Add(&app_, "get", "Show jobs or nodes",
                        "  mpctl get jobs\n  mpctl get job NAME -o yaml\n  mpctl get nodes -o wide");
    get->footer(std::string(kStates) +
                "\nExamples:\n  mpctl get jobs\n  mpctl get job NAME -o yaml\n  mpctl get nodes -o wide");
    get->require_subcommand(1);
    CLI::App* jobs = Add(get, "jobs", "All jobs, newest first", "  mpctl get jobs -o wide");
    CLI::App* job = Add(get, "job", "One job", "  mpctl get job NAME -o yaml");
    CLI::App* nodes = Add(get, "nodes", "All nodes", "  mpctl get nodes");
    for (CLI::App* command : {jobs, job, nodes}) AddFormat(command);
    job->add_option("name", name_, "Name of the job")->required();
    jobs->callback([this] {
      result_ = WithFormat(
          globals_, [this](Format f) { return WithServer(globals_, [f](Connection* c) { return GetJobs(c, f); }); });
    });
    nodes->callback([this] {
      result_ = WithFormat(
          globals_, [this](Format f) { return WithServer(globals_, [f](Connection* c) { return GetNodes(c, f); }); });
    });
    job->callback([this] {
      result_ = WithFormat(globals_, [this](Format f) {
        return WithServer(globals_, [this, f](Connection* c) { return GetJob(c, name_, f); });
      });
    });
  }

  // "describe NAME" and "describe job NAME" are the same.
  static std::string OneName(const std::vector<std::string>& words) {
    return words.size() == 2 && words[0] == "job" ? words[1] : words[0];
  }

  void AddFollowing() {
    CLI::App* describe =
        Add(&app_, "describe", "All about a job: state, why it waits, attempts, events", "  mpctl describe job NAME");
    describe->add_option("name", words_, "[job] NAME")->required()->expected(1, 2);
    describe->callback(
        [this] { result_ = WithServer(globals_, [this](Connection* c) { return Describe(c, OneName(words_)); }); });

    CLI::App* watch = Add(&app_, "watch", "Follow a job to its end",
                          "  mpctl watch NAME\n  mpctl watch NAME -o json      # one object a line: events and frames");
    watch->add_option("name", watch_.name, "Name of the job")->required();
    watch->add_option("-o,--output", globals_.format, "table or json")->check(CLI::IsMember({"table", "json"}));
    watch->callback([this] {
      watch_.json = globals_.format == "json";
      std::signal(SIGINT, OnInterrupt);
      result_ = WithServer(globals_, [this](Connection* c) { return Watch(c, watch_); });
    });

    CLI::App* logs = Add(&app_, "logs", "Print what ranks wrote",
                         "  mpctl logs NAME\n  mpctl logs NAME -f --rank 1\n  mpctl logs NAME --all-ranks --tail 20");
    logs->add_option("name", log_.name, "Name of the job")->required();
    logs->add_flag("-f,--follow,!--no-follow", log_.follow, "Go on until the job ends");
    logs->add_option("--rank", log_.rank, "Rank")->capture_default_str();
    logs->add_flag_callback(
        "--all-ranks", [this] { log_.rank = -1; }, "Every rank, each line with its rank in front");
    logs->add_option("--attempt", log_.attempt, "Number of the attempt; default: the newest");
    logs->add_option("--tail", log_.tail, "Only the last lines")->check(CLI::NonNegativeNumber);
    logs->callback([this] { result_ = WithServer(globals_, [this](Connection* c) { return Logs(c, log_); }); });

    CLI::App* metrics = Add(&app_, "metrics", "Print the series of a job",
                            "  mpctl metrics NAME\n  mpctl metrics NAME --series loss --series "
                            "'model.layers.0.*/scale' -o json\n  mpctl metrics NAME --follow");
    metrics->add_option("name", metric_.name, "Name of the job")->required();
    metrics->add_option("--series", metric_.series, "Name, with * for anything; may be repeated; default: all scalars")
        ->allow_extra_args(false);
    metrics->add_option("--rank", metric_.rank, "Rank; -1: all")->capture_default_str();
    metrics->add_flag("--follow", metric_.follow, "Print frames as they come");
    metrics->add_option("-o,--output", globals_.format, "table or json")->check(CLI::IsMember({"table", "json"}));
    metrics->callback([this] {
      metric_.json = globals_.format == "json";
      result_ = WithServer(globals_, [this](Connection* c) { return Metrics(c, metric_); });
    });

    CLI::App* cancel = Add(&app_, "cancel", "End a job", "  mpctl cancel NAME --wait");
    cancel->add_option("name", name_, "Name of the job")->required();
    cancel->add_flag("--wait", wait_, "Return when every process of it has ended");
    cancel->add_flag("--dry-run", dry_run_, "Only check that it could be cancelled");
    cancel->callback([this] {
      result_ = WithServer(globals_, [this](Connection* c) { return Cancel(c, name_, wait_, dry_run_); });
    });
  }

  void AddDev() {
    CLI::App* dev = Add(&app_, "dev", "A cluster on this machine",
                        "  mpctl dev up --workers 2\n  mpctl dev status\n  mpctl dev down");
    dev->require_subcommand(1);
    CLI::App* up = Add(dev, "up", "Start a controller and workers, detached, on loopback",
                       "  mpctl dev up --workers 2\n  mpctl dev up --workers 4 --data-dir /tmp/mp");
    up->add_option("--workers", dev_.workers, "Workers")->check(CLI::Range(1, 64))->capture_default_str();
    up->add_option("--devices-per-worker", dev_.devices_per_worker, "CPU slots of each worker")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    up->add_option("--data-dir", dev_.data_dir, "Folder for databases and logs; default: beside " + DevStateFile());
    up->add_option("--bin-dir", dev_.bin_dir, "Folder of mp-controller and mp-worker; default: mpctl's");
    up->add_option("--listen", dev_.listen, "HOST:PORT of the controller; port 0: any free one")->capture_default_str();
    up->add_option("--metrics-listen", dev_.metrics_listen, "HOST:PORT of /metrics; port 0: any free one")
        ->capture_default_str();
    up->add_option("--lease", dev_.lease, "Lease of the workers")->capture_default_str();
    up->callback([this] { result_ = Finish(DevUp(dev_)); });
    CLI::App* down = Add(dev, "down", "End the cluster; its data stays", "  mpctl dev down");
    down->callback([this] { result_ = Finish(DevDown()); });
    CLI::App* status = Add(dev, "status", "Show its processes", "  mpctl dev status");
    status->callback([this] { result_ = Finish(DevStatus()); });
  }

  static int Finish(const absl::Status& status) { return status.ok() ? kOk : Report(status); }

  CLI::App app_;
  int result_ = kFailure;
  Globals globals_;
  SubmitOptions submit_;
  WatchOptions watch_;
  LogOptions log_;
  MetricOptions metric_;
  DevOptions dev_;
  std::string name_;
  std::string shell_;
  std::vector<std::string> words_;
  bool wait_ = false;
  bool dry_run_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);
  return Program().Run(argc, argv);
}
