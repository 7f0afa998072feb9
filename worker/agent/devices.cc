#include "worker/agent/devices.h"

#include <dlfcn.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace mp::agent {
namespace {

// The few calls of NVML (nvml.h) that are needed, looked up at run time: most hosts of a test have no driver.
class Nvml {
 public:
  static std::unique_ptr<Nvml> Load() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    auto nvml = std::make_unique<Nvml>();
    nvml->library_.reset(library);
    auto* init = nvml->Symbol<int (*)()>("nvmlInit_v2");
    return init != nullptr && init() == 0 ? std::move(nvml) : nullptr;
  }

  std::vector<v1::Device> Devices() const {
    auto* count_of = Symbol<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
    auto* handle_of = Symbol<int (*)(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
    auto* name_of = Symbol<int (*)(void*, char*, unsigned)>("nvmlDeviceGetName");
    auto* memory_of = Symbol<int (*)(void*, Memory*)>("nvmlDeviceGetMemoryInfo");
    std::vector<v1::Device> devices;
    unsigned count = 0;
    if (count_of == nullptr || handle_of == nullptr || name_of == nullptr || memory_of == nullptr ||
        count_of(&count) != 0)
      return devices;
    for (unsigned i = 0; i < count; ++i) {
      void* handle = nullptr;
      char name[96] = {};
      Memory memory = {};
      if (handle_of(i, &handle) != 0 || name_of(handle, name, sizeof(name)) != 0 || memory_of(handle, &memory) != 0)
        continue;
      v1::Device& device = devices.emplace_back();
      device.set_index(static_cast<int>(i));
      device.set_model(name);
      device.set_memory_bytes(static_cast<int64_t>(memory.total));
    }
    return devices;
  }

 private:
  struct Memory {
    unsigned long long total, free, used;
  };
  struct CloseLibrary {
    void operator()(void* library) const { dlclose(library); }
  };
  template <typename F>
  F Symbol(const char* name) const {
    return reinterpret_cast<F>(dlsym(library_.get(), name));
  }
  std::unique_ptr<void, CloseLibrary> library_;
};

v1::ResourceSpec::NodeClass ClassOf(const std::vector<v1::Device>& devices) {
  if (devices.empty()) return v1::ResourceSpec::CPU;
  const std::string& model = devices.front().model();
  if (absl::StrContains(model, "H100") || absl::StrContains(model, "H200")) return v1::ResourceSpec::P5;
  if (absl::StrContains(model, "A100")) return v1::ResourceSpec::P4;
  return v1::ResourceSpec::CPU;
}

}  // namespace

absl::StatusOr<HostDevices> FindDevices(const std::string& wanted, int cpu_devices) {
  HostDevices host;
  if (wanted != "CPU") {
    if (const auto nvml = Nvml::Load()) host.devices = nvml->Devices();
    host.node_class = ClassOf(host.devices);
    if (wanted != "auto" && v1::ResourceSpec::NodeClass_Name(host.node_class) != wanted) {
      return absl::FailedPreconditionError(
          absl::StrCat("--node-class ", wanted, ": this host has ",
                       host.devices.empty() ? "no GPU that NVML shows" : host.devices.front().model()));
    }
  }
  if (host.node_class == v1::ResourceSpec::CPU) host = DeclareDevices(v1::ResourceSpec::CPU, cpu_devices);
  return host;
}

HostDevices DeclareDevices(v1::ResourceSpec::NodeClass node_class, int count) {
  HostDevices host;
  host.node_class = node_class;
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  for (int i = 0; i < count; ++i) {
    v1::Device& device = host.devices.emplace_back();
    device.set_index(i);
    device.set_model(node_class == v1::ResourceSpec::CPU ? "cpu" : "declared");
    device.set_memory_bytes(memory / count);
  }
  return host;
}

}  // namespace mp::agent
