#include "worker/trainer/device/cuda/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "worker/trainer/config/error.h"

namespace mp::trainer {
namespace {

constexpr char kName[] = "libmp_cuda.so";

std::string LibraryPath() {
  namespace fs = std::filesystem;
  const char* path = std::getenv("MP_CUDA_LIBRARY");  // NOLINT(concurrency-mt-unsafe): nothing writes it
  if (path != nullptr && *path != '\0') return path;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& candidate : {folder / kName, folder.parent_path() / "lib" / kName}) {
    if (fs::exists(candidate, error)) return candidate.string();
  }
  throw TrainerError(EndCause::kBadConfig,
                     std::string("resources.node_class: hosts of class P4 and P5 train with CUDA, and ") + kName +
                         " is not beside this mp-trainer: build it where a CUDA 13 toolkit is, or name it in "
                         "MP_CUDA_LIBRARY");
}

const CudaLibrary& Load() {
  const std::string path = LibraryPath();
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): one thread loads
    throw TrainerError(EndCause::kBadConfig, "the CUDA library " + path +
                                                 " cannot be loaded: " + (reason != nullptr ? reason : "") +
                                                 "; deploy/dependencies --cuda installs what it needs");
  }
  using Entry = const CudaLibrary* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "mp_cuda_library"));
  if (entry == nullptr || std::string_view(entry()->version) != MP_VERSION) {
    throw TrainerError(EndCause::kBadConfig, path + " is not of this mp-trainer's version, " MP_VERSION);
  }
  return *entry();
}

}  // namespace

const CudaLibrary& LoadCudaLibrary() {
  static const CudaLibrary& library = Load();
  return library;
}

}  // namespace mp::trainer
