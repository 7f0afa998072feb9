// Collectives of a job with one rank: copies, no network.
#pragma once

#include <memory>

#include "worker/trainer/sharding/collectives.h"

namespace mp::trainer {

std::unique_ptr<Collectives> MakeSingleRankCollectives();

}  // namespace mp::trainer
