#include "client/address.h"

#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace mp::client {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing writes it
  return value == nullptr ? "" : value;
}

std::string BaseFolder(const char* variable, const char* fallback) {
  std::string set = Variable(variable);
  if (!set.empty() && set[0] == '/') return set;
  return Variable("HOME") + fallback;
}

absl::StatusOr<ServerAddress> FromConfig(const std::string& context) {
  const std::string path = ConfigFile();
  if (!std::filesystem::exists(path)) {
    if (context.empty()) return ServerAddress{};
    return absl::InvalidArgumentError(absl::StrCat("--context ", context, ": there is no ", path));
  }
  try {
    const YAML::Node config = YAML::LoadFile(path);
    const std::string wanted = context.empty() ? config["current_context"].as<std::string>("") : context;
    if (wanted.empty()) return ServerAddress{};
    for (const auto& entry : config["contexts"]) {
      if (entry["name"].as<std::string>("") == wanted)
        return ServerAddress{entry["server"].as<std::string>(), absl::StrCat("context ", wanted, " of ", path)};
    }
    return absl::InvalidArgumentError(absl::StrCat(path, " has no context \"", wanted, "\""));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

}  // namespace

std::string ConfigFile() { return BaseFolder("XDG_CONFIG_HOME", "/.config") + "/mp/config.yaml"; }
std::string DevStateFile() { return BaseFolder("XDG_STATE_HOME", "/.local/state") + "/mp/dev.json"; }

absl::StatusOr<ServerAddress> FindServer(const std::string& server, const std::string& context) {
  if (!server.empty()) return ServerAddress{server, "--server"};
  if (const std::string set = Variable("MP_SERVER"); !set.empty()) return ServerAddress{set, "MP_SERVER"};
  absl::StatusOr<ServerAddress> configured = FromConfig(context);
  if (!configured.ok() || !configured->address.empty()) return configured;
  std::ifstream file(DevStateFile());
  const nlohmann::json state = nlohmann::json::parse(file, nullptr, false);
  if (state.is_object() && state.contains("address") && state["address"].is_string()) {
    return ServerAddress{state["address"].get<std::string>(), "the cluster of `mpctl dev up`"};
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no controller is named: pass --server HOST:PORT, set MP_SERVER, write a context into ",
                   ConfigFile(), ", or start a cluster here with `mpctl dev up`"));
}

}  // namespace mp::client
