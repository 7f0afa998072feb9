#include "worker/trainer/sharding/initialise.h"

#include <ATen/core/PhiloxRNGEngine.h>

#include <array>
#include <cmath>
#include <numbers>

#include "worker/trainer/hash/xxh64.h"

namespace mp::trainer {
namespace {

constexpr int64_t kBlock = 4;  // values of one Philox counter

std::array<float, kBlock> NormalBlock(at::Philox4_32& engine, double std) {
  std::array<float, kBlock> values{};
  for (size_t pair = 0; pair < kBlock; pair += 2) {
    // In (0, 1]: the logarithm of 0 is not asked for.
    const double u = (static_cast<double>(engine()) + 1.0) * 0x1p-32;
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(engine()) * 0x1p-32;
    const double radius = std * std::sqrt(-2.0 * std::log(u));
    values[pair] = static_cast<float>(radius * std::cos(angle));
    values[pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return values;
}

}  // namespace

void FillNormal(int64_t seed, const std::string& name, double std, int64_t begin, int64_t count, float* out) {
  Xxh64 hash(static_cast<uint64_t>(seed));
  hash.Update(name.data(), name.size());
  int64_t next = begin / kBlock * kBlock;
  at::Philox4_32 engine(hash.Digest(), 0, static_cast<uint64_t>(next / kBlock));
  for (; next < begin + count; next += kBlock) {
    const auto block = NormalBlock(engine, std);
    for (int64_t i = 0; i < kBlock; ++i) {
      if (next + i >= begin && next + i < begin + count) out[next + i - begin] = block[static_cast<size_t>(i)];
    }
  }
}

}  // namespace mp::trainer
