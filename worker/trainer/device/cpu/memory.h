// Memory of this process.
#pragma once

#include <cstdint>

namespace mp::trainer {

int64_t ResidentBytes();
int64_t PeakResidentBytes();

}  // namespace mp::trainer
