// The library's one exported symbol.
#include "worker/trainer/device/cuda/cuda_device.h"
#include "worker/trainer/device/cuda/fp8_cast.h"
#include "worker/trainer/device/cuda/library.h"
#include "worker/trainer/device/cuda/nccl_collectives.h"

extern "C" __attribute__((visibility("default"))) const mp::trainer::CudaLibrary* mp_cuda_library() {
  static const mp::trainer::CudaLibrary library = {MP_VERSION, mp::trainer::MakeCudaDevice,
                                                   mp::trainer::MakeNcclCollectives, mp::trainer::CudaCastToFp8};
  return &library;
}
