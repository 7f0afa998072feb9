// Whether this host has what a job names: data, config, program, a place for checkpoints.
#pragma once

#include <string>
#include <vector>

#include "mp/v1/worker_service.pb.h"

namespace mp::agent {

// One error for each file or folder that is missing or can't be used, with `host` and the path. May block as long as
// the file system does. `trainer`: path of mp-trainer.
std::vector<v1::PrepareError> CheckFiles(const v1::PrepareAttempt& prepare, const std::string& host,
                                         const std::string& trainer);

}  // namespace mp::agent
