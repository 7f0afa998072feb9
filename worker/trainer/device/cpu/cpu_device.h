// The CPU as a Device: memory is the process's own, nothing is copied.
#pragma once

#include <memory>

#include "worker/trainer/device/device.h"

namespace mp::trainer {

std::unique_ptr<Device> MakeCpuDevice();

}  // namespace mp::trainer
