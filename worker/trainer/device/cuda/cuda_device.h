// A GPU as a Device.
//
// Work is enqueued on one stream of the rank's own (never the default one, which can't be recorded); copies to and from
// the host have another. Products are summed in fp32, fp32 ones without TF32, and operations are deterministic.
#pragma once

#include <memory>

#include "worker/trainer/device/device.h"

namespace mp::trainer {

// See CudaLibrary::make_device.
std::unique_ptr<Device> MakeCudaDevice(int index);

}  // namespace mp::trainer
