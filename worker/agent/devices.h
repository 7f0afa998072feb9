// The devices of this host, as they are found: never assumed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "mp/v1/job.pb.h"
#include "mp/v1/node_service.pb.h"

namespace mp::agent {

struct HostDevices {
  v1::ResourceSpec::NodeClass node_class = v1::ResourceSpec::CPU;
  std::vector<v1::Device> devices;
};

// `wanted`: "auto", "CPU", "P4" or "P5". GPUs are found through NVML (libnvidia-ml.so.1) where it is installed: A100 is
// P4, H100 and H200 are P5. "auto" without such a GPU is CPU with `cpu_devices` slots. FAILED_PRECONDITION where a
// class is asked for that this host does not have.
absl::StatusOr<HostDevices> FindDevices(const std::string& wanted, int cpu_devices);

// `count` devices of a class that nobody has looked for: tests of placement only.
HostDevices DeclareDevices(v1::ResourceSpec::NodeClass node_class, int count);

}  // namespace mp::agent
