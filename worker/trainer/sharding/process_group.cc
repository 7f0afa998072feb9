#include "worker/trainer/sharding/process_group.h"

#include "worker/trainer/config/error.h"
#include "worker/trainer/sharding/gloo.h"
#include "worker/trainer/sharding/single_rank.h"

namespace mp::trainer {

std::unique_ptr<Collectives> JoinProcessGroup(const Rendezvous& rendezvous) {
  if (rendezvous.world_size == 1) return MakeSingleRankCollectives();
#ifdef MP_HAS_GLOO
  return MakeGlooCollectives(rendezvous);
#else
  throw TrainerError(EndCause::kBadConfig, "WORLD_SIZE=" + std::to_string(rendezvous.world_size) +
                                               ": this mp-trainer was built without Gloo's headers (libgloo-dev) and "
                                               "runs one rank only");
#endif
}

}  // namespace mp::trainer
