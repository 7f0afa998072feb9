// One `rank-R.tensors` file; see format.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "worker/trainer/checkpoint/checkpoint.h"

namespace mp::trainer {

struct TensorFileContents {
  std::string header;            // with its length in front
  std::vector<at::Tensor> data;  // contiguous, in the order of the header
  int64_t bytes = 0;
  uint64_t hash = 0;
};

// Lays the slices out; float32 and uint8 tensors on the CPU.
TensorFileContents LayOutTensorFile(const std::vector<TensorSlice>& slices);

// Reads the file, checks length and hash, and gives its slices. Throws TrainerError(kCheckpoint) naming the file and
// what is wrong.
std::vector<TensorSlice> ReadTensorFile(const std::string& path, int64_t bytes, const std::string& hash);

}  // namespace mp::trainer
