#include "worker/trainer/sharding/flat_layout.h"

#include <algorithm>

namespace mp::trainer {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

FlatLayout::FlatLayout(const std::vector<ParameterSpec>& parameters, int shards, int parts) {
  int64_t next = 0;
  for (const ParameterSpec& parameter : parameters) {
    offsets_.push_back(next);
    numels_.push_back(parameter.numel());
    next += RoundUp(parameter.numel(), kAlignment);
  }
  shard_ = RoundUp((next + shards - 1) / shards, kAlignment * parts);
  padded_ = shard_ * shards;
}

std::vector<FlatLayout::Piece> FlatLayout::Pieces(int shard) const {
  const int64_t begin = shard_ * shard;
  const int64_t end = begin + shard_;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < offsets_.size(); ++i) {
    const int64_t first = std::max(begin, offsets_[i]);
    const int64_t last = std::min(end, offsets_[i] + numels_[i]);
    if (first < last) pieces.push_back({i, first - offsets_[i], first - begin, last - first});
  }
  return pieces;
}

}  // namespace mp::trainer
