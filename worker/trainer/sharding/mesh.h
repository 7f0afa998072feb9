// The process groups of a sharding strategy. Ranks are cut into blocks of `shard degree` neighbours that share one copy
// of the model; ranks with the same place in their blocks hold the same shard.
//
//   FULL_SHARD, SHARD_GRAD_OP   one block of all ranks
//   HYBRID_SHARD                blocks of hybrid_shard_degree ranks
//   NO_SHARD                    blocks of one
//
//   8 ranks, degree 4:   shard groups {0 1 2 3} {4 5 6 7}   replica groups {0 4} {1 5} {2 6} {3 7}
#pragma once

#include <memory>

#include "worker/trainer/config/job.h"
#include "worker/trainer/sharding/collectives.h"

namespace mp::trainer {

class ShardingMesh {
 public:
  // Every rank of `world` calls it. `world` must outlive this. Throws TrainerError(kBadConfig) when the degree does not
  // divide the world size.
  ShardingMesh(const ShardingConfig& sharding, Collectives* world);

  Collectives* world() const { return world_; }
  // The ranks that share one copy.
  Collectives* shard() const { return shard_; }
  // The ranks that hold what this one holds.
  Collectives* replicas() const { return replicas_; }

 private:
  Collectives* world_;
  Collectives* shard_;
  Collectives* replicas_;
  std::unique_ptr<Collectives> owned_shard_;
  std::unique_ptr<Collectives> owned_replicas_;
};

}  // namespace mp::trainer
