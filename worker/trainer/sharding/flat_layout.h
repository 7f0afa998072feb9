// How the parameters of one stage lie in one flat tensor, and which part of it each rank keeps. Pure arithmetic.
//
//   flat:  | p0 ....pad | p1 .pad | p2 ........pad |  padded to equal shards
//   rank:  |<-- shard 0 -->|<-- shard 1 -->|<-- shard 2 -->|
//
// Each parameter starts at a multiple of kAlignment elements, so that its rows are aligned for vector loads in every
// type. Any shapes (empty parameters too) and any number of shards; a shard may be padding alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/trainer/model/model.h"

namespace mp::trainer {

class FlatLayout {
 public:
  static constexpr int64_t kAlignment = 32;  // elements

  // A part of a parameter that lies in a shard.
  struct Piece {
    size_t parameter = 0;         // index
    int64_t parameter_begin = 0;  // first element, in the flattened parameter
    int64_t shard_begin = 0;      // first element, in the shard
    int64_t count = 0;            // elements, > 0
  };

  // A shard is a multiple of `parts` as well: replicas cut it once more when they sum their gradients.
  FlatLayout(const std::vector<ParameterSpec>& parameters, int shards, int parts = 1);

  int64_t padded() const { return padded_; }
  int64_t shard_size() const { return shard_; }
  int64_t offset(size_t parameter) const { return offsets_[parameter]; }
  int64_t numel(size_t parameter) const { return numels_[parameter]; }
  // What lies in a shard, in the order of parameters.
  std::vector<Piece> Pieces(int shard) const;

 private:
  std::vector<int64_t> offsets_;
  std::vector<int64_t> numels_;
  int64_t padded_ = 0;
  int64_t shard_ = 0;
};

}  // namespace mp::trainer
