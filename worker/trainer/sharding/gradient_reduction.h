// The sum over ranks of one stage's gradients, in phases, so that each phase's bytes travel while backward computes.
//
//   shard group      reduce-scatter of the flat gradient: each rank has the sum for its shard
//   replica group    reduce-scatter of the shard, then all-gather: copies have the same sum
// A phase whose group has one rank falls away. Addends and what replicas hand to one another travel in reduce_dtype,
// sums are taken in fp32.
//
// Thread-safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "worker/trainer/sharding/mesh.h"

namespace mp::trainer {

class GradientReduction {
 public:
  // `mesh` is not owned.
  GradientReduction(const ShardingMesh& mesh, at::ScalarType reduce_dtype)
      : shard_(mesh.shard()), replicas_(mesh.replicas()), reduce_dtype_(reduce_dtype) {}

  // flat: reduce_dtype [shards * n], padding included.
  void Start(at::Tensor flat);
  bool in_flight() const { return pending_ != nullptr; }
  // Waits for the phase in flight and starts the next.
  void Advance();
  // fp32 [n] once nothing is in flight after Start; the caller's from then on.
  at::Tensor Take();
  void Abandon();

 private:
  void StartReplicas(at::Tensor part);

  enum class Phase { kShard, kReplicasScatter, kReplicasGather };
  Collectives* shard_;
  Collectives* replicas_;
  at::ScalarType reduce_dtype_;

  Phase phase_ = Phase::kShard;
  std::unique_ptr<Collectives::Pending> pending_;
  at::Tensor sent_;      // input of the phase in flight
  at::Tensor received_;  // its output; the result after the last
};

}  // namespace mp::trainer
