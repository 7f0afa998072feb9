#include "worker/trainer/sharding/gradient_reduction.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "worker/trainer/precision/convert.h"

namespace mp::trainer {

void GradientReduction::Start(at::Tensor flat) {
  TORCH_INTERNAL_ASSERT(!in_flight());
  if (shard_->world_size() == 1) return StartReplicas(std::move(flat));
  sent_ = std::move(flat);
  received_ = at::empty({sent_.numel() / shard_->world_size()}, sent_.options().dtype(at::kFloat));
  phase_ = Phase::kShard;
  pending_ = shard_->ReduceScatter(received_, sent_);
}

// part: this rank's shard, in any float type.
void GradientReduction::StartReplicas(at::Tensor part) {
  if (replicas_->world_size() == 1) {
    received_ = ToFloatTensor(part);
    return;
  }
  sent_ = part.scalar_type() == reduce_dtype_ ? std::move(part) : FromFloatTensor(part, 1.0F, reduce_dtype_);
  received_ = at::empty({sent_.numel() / replicas_->world_size()}, sent_.options().dtype(at::kFloat));
  phase_ = Phase::kReplicasScatter;
  pending_ = replicas_->ReduceScatter(received_, sent_);
}

void GradientReduction::Advance() {
  if (!in_flight()) return;
  pending_->Wait();
  pending_.reset();
  sent_.reset();
  switch (phase_) {
    case Phase::kShard:
      return StartReplicas(std::exchange(received_, at::Tensor()));
    case Phase::kReplicasScatter:
      // Every copy takes the same rounded sums, its own part included: they must not drift apart.
      sent_ = FromFloatTensor(received_, 1.0F, reduce_dtype_);
      received_ = at::empty({sent_.numel() * replicas_->world_size()}, sent_.options());
      phase_ = Phase::kReplicasGather;
      pending_ = replicas_->AllGather(received_, sent_);
      return;
    case Phase::kReplicasGather:
      received_ = ToFloatTensor(received_);
      return;
  }
}

void GradientReduction::Abandon() {
  pending_.reset();
  sent_.reset();
  received_.reset();
}

at::Tensor GradientReduction::Take() {
  TORCH_INTERNAL_ASSERT(!in_flight());
  return std::exchange(received_, at::Tensor());
}

}  // namespace mp::trainer
