#include "tests/golden/golden_file.h"

#include <ATen/ATen.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace mp::trainer {

GoldenFile ReadGolden(const std::string& name) {
  const std::string path = std::string(MP_GOLDEN_DIR) + "/" + name;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " is missing");
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const JsonValue header = ParseJson(std::string_view(bytes).substr(8, length));
  GoldenFile golden;
  for (const auto& [key, entry] : header.AsObject()) {
    if (key == "__metadata__") {
      golden.metadata = entry;
      continue;
    }
    const std::string& dtype = entry.At("dtype").AsString();
    const at::ScalarType type = dtype == "I64" ? at::kLong : at::kFloat;
    std::vector<int64_t> shape;
    for (const JsonValue& extent : entry.At("shape").AsArray()) shape.push_back(extent.AsInteger());
    const int64_t begin = entry.At("data_offsets").AsArray()[0].AsInteger();
    at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(type));
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + length + begin, tensor.nbytes());
    golden.tensors[key] = tensor;
  }
  return golden;
}

double RelativeDistance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide_a = a.to(at::kDouble);
  const at::Tensor wide_b = b.to(at::kDouble);
  const double norm = wide_b.norm().item<double>();
  const double distance = (wide_a - wide_b).norm().item<double>();
  return norm == 0 ? distance : distance / norm;
}

}  // namespace mp::trainer
