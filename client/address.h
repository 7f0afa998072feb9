// Where the controller is: --server, then MP_SERVER, then the current context of the config file, then a cluster of
// `mpctl dev up`.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace mp::client {

struct ServerAddress {
  std::string address;  // HOST:PORT
  std::string source;   // for messages: "--server", "MP_SERVER", ...
};

// $XDG_CONFIG_HOME/mp/config.yaml and $XDG_STATE_HOME/mp/dev.json, with the defaults of the XDG base directories.
std::string ConfigFile();
std::string DevStateFile();

// `server` and `context`: the flags, empty when not given. FAILED_PRECONDITION where nothing names a server,
// INVALID_ARGUMENT for a config file that can't be read or lacks the context.
absl::StatusOr<ServerAddress> FindServer(const std::string& server, const std::string& context);

}  // namespace mp::client
