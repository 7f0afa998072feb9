// Collectives on GPUs by c10d's NCCL. Waiting for one makes the current stream wait, never the host; sums of a
// reduce-scatter are taken by NCCL in the type that travels, as FSDP's are.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "worker/trainer/sharding/collectives.h"
#include "worker/trainer/sharding/process_group.h"

namespace mp::trainer {

// See CudaLibrary::make_collectives.
std::unique_ptr<Collectives> MakeNcclCollectives(const Rendezvous& rendezvous, Collectives* host,
                                                 const std::function<void(const std::string&)>& on_peer_lost);

}  // namespace mp::trainer
