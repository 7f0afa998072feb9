#include "worker/trainer/sharding/mesh.h"

#include <string>
#include <vector>

#include "worker/trainer/config/error.h"

namespace mp::trainer {
namespace {

int ShardDegree(const ShardingConfig& sharding, int world_size) {
  switch (sharding.strategy) {
    case ShardingConfig::Strategy::kNoShard:
      return 1;
    case ShardingConfig::Strategy::kHybridShard:
      return static_cast<int>(sharding.hybrid_shard_degree);
    case ShardingConfig::Strategy::kFullShard:
    case ShardingConfig::Strategy::kShardGradOp:
      break;
  }
  return world_size;
}

}  // namespace

ShardingMesh::ShardingMesh(const ShardingConfig& sharding, Collectives* world) : world_(world) {
  const int ranks = world->world_size();
  const int degree = ShardDegree(sharding, ranks);
  if (ranks % degree != 0) {
    throw TrainerError(EndCause::kBadConfig, "sharding.hybrid_shard_degree: " + std::to_string(degree) +
                                                 " does not divide the number of ranks, " + std::to_string(ranks));
  }
  std::vector<int> block;
  std::vector<int> same_place;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank / degree == world->rank() / degree) block.push_back(rank);
    if (rank % degree == world->rank() % degree) same_place.push_back(rank);
  }
  if (degree < ranks) owned_shard_ = world->Subgroup("shard" + std::to_string(world->rank() / degree), block);
  if (degree > 1) owned_replicas_ = world->Subgroup("replicas" + std::to_string(world->rank() % degree), same_place);
  shard_ = owned_shard_ ? owned_shard_.get() : world;
  replicas_ = owned_replicas_ ? owned_replicas_.get() : world;
}

}  // namespace mp::trainer
