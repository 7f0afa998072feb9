// Collectives over TCP by c10d's Gloo, for ranks on CPUs.
#pragma once

#include <memory>

#include "worker/trainer/sharding/process_group.h"

namespace mp::trainer {

// Meets the other ranks; see JoinProcessGroup. Exists only where Gloo's headers were found (MP_HAS_GLOO).
std::unique_ptr<Collectives> MakeGlooCollectives(const Rendezvous& rendezvous);

}  // namespace mp::trainer
