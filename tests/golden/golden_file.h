// Reads the safetensors files that the generators of this folder write: u64 header length, JSON header, data. For
// tests: a file that is wrong throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "worker/trainer/json/json.h"

namespace mp::trainer {

struct GoldenFile {
  std::map<std::string, at::Tensor> tensors;
  JsonValue metadata;  // of "__metadata__"
};

// `name` relative to tests/golden.
GoldenFile ReadGolden(const std::string& name);

// ||a - b|| / ||b||, or ||a|| where b is exactly zero.
double RelativeDistance(const at::Tensor& a, const at::Tensor& b);

}  // namespace mp::trainer
