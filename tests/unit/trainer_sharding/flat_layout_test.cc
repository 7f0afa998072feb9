// Properties over random lists of shapes and world sizes.
#include "worker/trainer/sharding/flat_layout.h"

#include <gtest/gtest.h>

#include <random>

namespace mp::trainer {
namespace {

std::vector<ParameterSpec> RandomSpecs(std::mt19937& random) {
  std::vector<ParameterSpec> specs;
  const int count = std::uniform_int_distribution<int>(1, 9)(random);
  for (int i = 0; i < count; ++i) {
    ParameterSpec spec;
    spec.name = "p" + std::to_string(i);
    spec.shape = {std::uniform_int_distribution<int64_t>(0, 40)(random),
                  std::uniform_int_distribution<int64_t>(1, 13)(random)};
    specs.push_back(spec);
  }
  return specs;
}

TEST(FlatLayoutTest, ShardsCoverEachElementOnceInEveryWorld) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const auto specs = RandomSpecs(random);
    for (const int world : {1, 2, 3, 7, 64}) {
      const FlatLayout layout(specs, world);
      ASSERT_EQ(layout.padded(), layout.shard_size() * world);
      // What each rank would put into its shard, gathered, is the flat tensor; -1 is padding.
      std::vector<int64_t> flat(static_cast<size_t>(layout.padded()), -1);
      for (int rank = 0; rank < world; ++rank) {
        for (const FlatLayout::Piece& piece : layout.Pieces(rank)) {
          ASSERT_GT(piece.count, 0);
          ASSERT_LE(piece.shard_begin + piece.count, layout.shard_size());
          for (int64_t i = 0; i < piece.count; ++i) {
            int64_t& slot = flat[static_cast<size_t>(layout.shard_size() * rank + piece.shard_begin + i)];
            ASSERT_EQ(slot, -1);
            slot = static_cast<int64_t>(piece.parameter) * 1000000 + piece.parameter_begin + i;
          }
        }
      }
      for (size_t p = 0; p < specs.size(); ++p) {
        ASSERT_EQ(layout.offset(p) % FlatLayout::kAlignment, 0);
        for (int64_t i = 0; i < specs[p].numel(); ++i) {
          ASSERT_EQ(flat[static_cast<size_t>(layout.offset(p) + i)], static_cast<int64_t>(p) * 1000000 + i);
        }
      }
    }
  }
}

// Shards of one world, written to and read from a checkpoint's slices, are the shards of another.
TEST(FlatLayoutTest, ReshardingGivesBackTheSame) {
  std::mt19937 random(12);
  const auto value = [](size_t parameter, int64_t element) {
    return static_cast<int64_t>(parameter) * 1000000 + element;
  };
  for (int round = 0; round < 100; ++round) {
    const auto specs = RandomSpecs(random);
    const int from = std::uniform_int_distribution<int>(1, 9)(random);
    const int to = std::uniform_int_distribution<int>(1, 9)(random);
    const FlatLayout before(specs, from, std::uniform_int_distribution<int>(1, 4)(random));
    const FlatLayout after(specs, to, std::uniform_int_distribution<int>(1, 4)(random));
    std::vector<std::vector<int64_t>> whole;
    for (const ParameterSpec& spec : specs) whole.emplace_back(static_cast<size_t>(spec.numel()), -1);
    for (int shard = 0; shard < from; ++shard) {
      for (const FlatLayout::Piece& piece : before.Pieces(shard)) {
        for (int64_t i = piece.parameter_begin; i < piece.parameter_begin + piece.count; ++i)
          whole[piece.parameter][static_cast<size_t>(i)] = value(piece.parameter, i);
      }
    }
    size_t seen = 0;
    for (int shard = 0; shard < to; ++shard) {
      for (const FlatLayout::Piece& piece : after.Pieces(shard)) {
        for (int64_t i = piece.parameter_begin; i < piece.parameter_begin + piece.count; ++i, ++seen)
          ASSERT_EQ(whole[piece.parameter][static_cast<size_t>(i)], value(piece.parameter, i));
      }
    }
    size_t elements = 0;
    for (const auto& parameter : whole) elements += parameter.size();
    ASSERT_EQ(seen, elements);
  }
}

TEST(FlatLayoutTest, AShardIsCutEvenlyOnceMore) {
  const std::vector<ParameterSpec> specs = {{"p", {1000}, ParameterSpec::Init::kZeros, 0, false}};
  for (const int parts : {1, 2, 3, 5}) EXPECT_EQ(FlatLayout(specs, 3, parts).shard_size() % parts, 0);
}

}  // namespace
}  // namespace mp::trainer
