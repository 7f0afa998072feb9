// One rank on this host: its process, its pipes, and what of its output is shipped. Owned by the agent's loop.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "mp/v1/worker_service.pb.h"
#include "worker/agent/rendezvous.h"

namespace mp::agent {

struct Rank {
  int rank = 0;
  std::string token;
  pid_t pid = 0;  // also its process group
  bool reaped = false;
  bool stopped_by_us = false;
  std::optional<v1::RankExited> exited;
  std::optional<v1::Failed> failed;  // its own last words

  OwnedFd output;           // read end of stdout and stderr
  OwnedFd report;           // read end of report lines
  OwnedFd command;          // write end of command lines
  std::string report_rest;  // a line that is not complete yet

  OwnedFd spool;                                  // the output so far, a file
  int64_t spooled = 0;                            // bytes written to it
  int64_t logs_acked = 0;                         // bytes that the controller has stored
  std::deque<v1::TrainerEvent> events;            // not acknowledged yet
  int64_t first_event = 1;                        // sequence of events.front()
  bool refused = false;                           // the controller wants no more of this attempt
  std::optional<v1::CheckpointRequest> question;  // waits for an answer

  bool Shipped() const { return refused || (events.empty() && logs_acked >= spooled); }
};

struct SpawnRequest {
  std::vector<std::string> argv;
  std::vector<std::string> environment;
  std::string working_directory;
  int output_fd = -1;
  // Descriptors that the child keeps under the same numbers.
  std::vector<int> inherited;
};

// posix_spawn in a process group of its own, stdin from /dev/null, default signal dispositions and an empty mask, every
// other descriptor closed. Call from a thread that lives as long as the worker: the launcher's parent-death signal
// follows it.
absl::StatusOr<pid_t> Spawn(const SpawnRequest& request);

// Splits what a rank wrote to its report descriptor into events; a line that is none is put into `bad`.
void ParseReports(const std::string& data, Rank* rank, std::vector<v1::TrainerEvent>* events,
                  std::vector<std::string>* bad);

}  // namespace mp::agent
