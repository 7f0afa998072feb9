// The environment of a rank: an allow-list of the worker's own, torchrun's names, ours, and the job's.
#pragma once

#include <string>
#include <vector>

#include "mp/v1/worker_service.pb.h"

namespace mp::agent {

struct RankPlace {
  int rank = 0;
  int local_rank = 0;
  int device = 0;
  int rendezvous_fd = -1;  // rank 0: inherited
  int report_fd = -1;
  int command_fd = -1;
  int threads = 1;
  std::string token;  // marks every process of the rank
};

// "NAME=value" strings. `own`: the worker's environment, in the form of environ.
std::vector<std::string> RankEnvironment(const v1::PrepareAttempt& prepare, const v1::LaunchAttempt& launch,
                                         v1::ResourceSpec::NodeClass node_class, const std::string& gloo_interface,
                                         const RankPlace& place, const char* const* own);

}  // namespace mp::agent
