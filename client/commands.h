// mpctl's commands on a connection. Each prints its result to standard output, messages to standard error, and returns
// the exit code.
#pragma once

#include <string>
#include <vector>

#include "client/connection.h"
#include "client/output.h"

namespace mp::client {

// Prints an error with its violations, one a line; the exit code for it.
int Report(const absl::Status& status);

struct SubmitOptions {
  std::string file = "-";
  std::vector<std::string> overrides;
  std::string name;
  bool watch = false;
  bool dry_run = false;
  std::string format;  // empty: a line; YAML with --dry-run
};
int Submit(Connection* connection, const SubmitOptions& options);

int GetJobs(Connection* connection, Format format);
int GetJob(Connection* connection, const std::string& name, Format format);
int GetNodes(Connection* connection, Format format);
int Describe(Connection* connection, const std::string& name);
int Cancel(Connection* connection, const std::string& name, bool wait, bool dry_run);

struct WatchOptions {
  std::string name;
  bool json = false;
  bool quiet_events = false;
};
// Follows a job to its end; the exit code tells how it ended.
int Watch(Connection* connection, const WatchOptions& options);

struct LogOptions {
  std::string name;
  bool follow = false;
  int rank = 0;  // -1: all
  int attempt = 0;
  int tail = 0;
};
int Logs(Connection* connection, const LogOptions& options);

struct MetricOptions {
  std::string name;
  std::vector<std::string> series;
  int rank = 0;  // -1: all
  bool follow = false;
  bool json = false;
};
int Metrics(Connection* connection, const MetricOptions& options);

}  // namespace mp::client
