#include "worker/trainer/device/kernels.h"

#include <cstdlib>
#include <string_view>

namespace mp::trainer {

bool UsesCpuLoops(const at::Tensor& tensor) {
  static const bool aten_asked = [] {
    const char* choice = std::getenv("MP_CPU_KERNELS");  // NOLINT(concurrency-mt-unsafe): nothing writes it
    return choice != nullptr && std::string_view(choice) == "aten";
  }();
  return tensor.is_cpu() && !aten_asked;
}

}  // namespace mp::trainer
