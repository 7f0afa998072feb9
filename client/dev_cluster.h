// `mpctl dev`: a controller and workers on this machine, detached, on loopback.
//
// Their processes are recorded with their start times, so that a number which the system has given to another process
// is never signalled. One `up` or `down` at a time, held by a lock file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace mp::client {

struct DevOptions {
  int workers = 2;
  int devices_per_worker = 1;
  std::string data_dir;  // empty: beside the state file
  std::string bin_dir;   // empty: where mpctl is
  std::string listen = "127.0.0.1:0";
  std::string metrics_listen = "127.0.0.1:0";
  std::string lease = "60s";
  absl::Duration timeout = absl::Seconds(60);  // for all to be up
};

// Starts what is not running and prints the addresses on standard output. Says so when all runs already. On failure
// what it started is ended again, and the last lines of the log are in the error.
absl::Status DevUp(const DevOptions& options);
// Ends every process of the cluster; says so when there is none.
absl::Status DevDown();
// Prints one row a process; FAILED_PRECONDITION when there is no cluster.
absl::Status DevStatus();

}  // namespace mp::client
