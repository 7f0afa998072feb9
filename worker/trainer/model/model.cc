#include "worker/trainer/model/model.h"

namespace mp::trainer {

int64_t ParameterSpec::numel() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

}  // namespace mp::trainer
