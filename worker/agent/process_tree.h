// Processes of a rank wherever they went: found by the token in their environment, which children inherit.
//
// Thread-safety: any thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace mp::agent {

// Living processes (zombies left out) whose environment holds MP_RANK_TOKEN=`token`, or a token that starts with it
// when `prefix`.
std::vector<pid_t> FindByToken(const std::string& token, bool prefix);

// Children of this process that are not among `known`: orphans that a subreaper inherits.
std::vector<pid_t> FindStrayChildren(const std::vector<pid_t>& known);

}  // namespace mp::agent
