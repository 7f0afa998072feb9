#include "worker/trainer/data/permutation.h"

#include <cstddef>
#include <numeric>
#include <utility>

namespace mp::trainer {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014).
uint64_t SplitMix64(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<int64_t> SeededPermutation(int64_t count, int64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  uint64_t state = static_cast<uint64_t>(seed);
  state = SplitMix64(&state) ^ static_cast<uint64_t>(epoch);
  for (size_t left = order.size(); left > 1; --left) {
    // The bias of a 64-bit remainder is below 2^-24 for 2^40 samples.
    std::swap(order[left - 1], order[SplitMix64(&state) % left]);
  }
  return order;
}

}  // namespace mp::trainer
