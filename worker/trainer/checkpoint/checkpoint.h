// Sharded checkpoints: `output_dir/step-00000060-attempt-1/`, one file of tensors for each rank and one metadata file.
// Visible by one rename after all ranks have written and synced; each file has a checksum in the metadata. It loads at
// any world size. Format: see format.md in this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/trainer/checkpoint/file_system.h"
#include "worker/trainer/json/json.h"

namespace mp::trainer {

// A contiguous range [offset, offset + data.numel()) of the flattened global tensor `name`, fp32.
struct TensorSlice {
  std::string name;  // "model/model.norm.weight", "exp_avg/...", "exp_avg_sq/..."
  std::vector<int64_t> global_shape;
  int64_t offset = 0;  // elements
  at::Tensor data;     // fp32 [n], on any device; when loading it is filled
};

// What is the same on all ranks or belongs to no parameter.
struct ReplicatedState {
  JsonValue values;                           // step, applied steps, sampler position, loss scale, ...
  std::map<std::string, at::Tensor> tensors;  // FP8 state
  std::map<std::string, at::Tensor>
      rank_tensors;  // of each rank alone: RNG state; empty when loaded at another world size
};

// Collective operations that saving needs, given by the owner of the process group.
struct CheckpointGroup {
  int rank = 0;
  int world_size = 1;
  std::function<void()> barrier;
  // Gathers one string of each rank on every rank. Throws on a lost peer.
  std::function<std::vector<std::string>(const std::string&)> all_gather;
};

struct CheckpointInfo {
  std::string path;
  int64_t step = 0;
  int64_t bytes = 0;
};

// Saves; every rank calls it. `permit` is called on rank 0 alone after all is written and synced; false leaves nothing
// visible behind, and every rank returns false. Throws TrainerError(kCheckpoint) with path and errno's text on every
// rank.
bool SaveCheckpoint(const std::string& output_dir, int64_t step, int attempt, const std::vector<TensorSlice>& slices,
                    const ReplicatedState& state, const CheckpointGroup& group,
                    const std::function<bool(const std::string& path)>& permit, CheckpointInfo* info,
                    FileSystem* file_system = RealFileSystem());

// Newest first by (step, attempt); only directories that were made visible.
std::vector<std::string> ListCheckpoints(const std::string& output_dir);

// Loads one directory: every slice of `slices` is filled. Throws TrainerError(kCheckpoint) when anything is missing,
// misshaped or fails its checksum; then the contents of `slices` are unspecified and another checkpoint may be loaded.
ReplicatedState LoadCheckpoint(const std::string& path, std::vector<TensorSlice>& slices, const CheckpointGroup& group);

}  // namespace mp::trainer
