// The CUDA part of the trainer: a shared library that is loaded where a job's device is CUDA, so that the trainer
// itself starts on machines without CUDA's libraries.
//
// Thread-safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "worker/trainer/device/device.h"
#include "worker/trainer/precision/fp8/aten_cast.h"
#include "worker/trainer/sharding/collectives.h"
#include "worker/trainer/sharding/process_group.h"

namespace mp::trainer {

struct CudaLibrary {
  const char* version;  // must be the trainer's own

  // Device `index` of those that this process sees; the only one where it sees one. Makes it and a stream of its own
  // current on the calling thread. Throws TrainerError(kBadConfig) where there is none.
  std::unique_ptr<Device> (*make_device)(int index);
  // NCCL for tensors on the device, `host` (not owned, must outlive the result) for the others. `on_peer_lost` is
  // called on a thread of its own with what happened when a collective fails, or makes no progress for
  // rendezvous.timeout.
  std::unique_ptr<Collectives> (*make_collectives)(const Rendezvous& rendezvous, Collectives* host,
                                                   const std::function<void(const std::string&)>& on_peer_lost);
  fp8::CastKernel cast_to_fp8;  // see fp8::SetCudaCast
};

// Loads it once. Throws TrainerError(kBadConfig) saying what is missing.
const CudaLibrary& LoadCudaLibrary();

}  // namespace mp::trainer

// What the library exports.
extern "C" const mp::trainer::CudaLibrary* mp_cuda_library();
