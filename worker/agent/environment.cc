#include "worker/agent/environment.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace mp::agent {
namespace {

bool IsInherited(std::string_view name) {
  constexpr std::string_view kNames[] = {"PATH",
                                         "HOME",
                                         "USER",
                                         "LOGNAME",
                                         "LANG",
                                         "TZ",
                                         "TMPDIR",
                                         "LD_LIBRARY_PATH",
                                         "SSL_CERT_FILE",
                                         "SSL_CERT_DIR",
                                         "MP_COLLECTIVE_TIMEOUT",
                                         "MP_CPU_GEMM"};
  return name.starts_with("LC_") || std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

std::vector<std::string> RankEnvironment(const v1::PrepareAttempt& prepare, const v1::LaunchAttempt& launch,
                                         v1::ResourceSpec::NodeClass node_class, const std::string& gloo_interface,
                                         const RankPlace& place, const char* const* own) {
  std::map<std::string, std::string> variables;
  for (const char* const* entry = own; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && IsInherited(text.substr(0, equals)))
      variables[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  // Before the job's own, so that it may set it; the names after it are ours and the spec can't hold them.
  variables["OMP_NUM_THREADS"] = absl::StrCat(place.threads);
  for (const auto& [name, value] : prepare.spec().workload().env()) variables[name] = value;
  const v1::Placement& placement = prepare.placement();
  variables["RANK"] = absl::StrCat(place.rank);
  variables["WORLD_SIZE"] = absl::StrCat(prepare.world_size());
  variables["LOCAL_RANK"] = absl::StrCat(place.local_rank);
  variables["LOCAL_WORLD_SIZE"] = absl::StrCat(placement.ranks());
  variables["GROUP_RANK"] = absl::StrCat(placement.ranks() > 0 ? placement.first_rank() / placement.ranks() : 0);
  variables["MASTER_ADDR"] = launch.rendezvous_address();
  variables["MASTER_PORT"] = absl::StrCat(launch.rendezvous_port());
  variables["MP_JOB_NAME"] = prepare.id().job();
  variables["MP_ATTEMPT"] = absl::StrCat(prepare.id().attempt());
  variables["MP_RESUME_FROM"] = prepare.resume_from();
  variables["MP_REPORT_FD"] = absl::StrCat(place.report_fd);
  variables["MP_COMMAND_FD"] = absl::StrCat(place.command_fd);
  variables["MP_RANK_TOKEN"] = place.token;
  if (place.rendezvous_fd >= 0) variables["MP_RENDEZVOUS_FD"] = absl::StrCat(place.rendezvous_fd);
  if (!gloo_interface.empty()) variables["GLOO_SOCKET_IFNAME"] = gloo_interface;
  if (node_class != v1::ResourceSpec::CPU) variables["CUDA_VISIBLE_DEVICES"] = absl::StrCat(place.device);
  std::vector<std::string> result;
  result.reserve(variables.size());
  for (const auto& [name, value] : variables) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

}  // namespace mp::agent
