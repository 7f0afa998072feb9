// A seeded permutation that is the same on every machine and library version: Fisher-Yates on SplitMix64.
#pragma once

#include <cstdint>
#include <vector>

namespace mp::trainer {

// Of 0 .. count - 1, from (seed, epoch) and the original order.
std::vector<int64_t> SeededPermutation(int64_t count, int64_t seed, int64_t epoch);

}  // namespace mp::trainer
