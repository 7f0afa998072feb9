#include "worker/trainer/sharding/single_rank.h"

#include <utility>

namespace mp::trainer {
namespace {

class Done : public Collectives::Pending {
 public:
  void Wait() override {}
};

class SingleRank : public Collectives {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::unique_ptr<Pending> AllGather(at::Tensor output, at::Tensor input) override {
    output.copy_(input);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> ReduceScatter(at::Tensor output, at::Tensor input) override {
    output.copy_(input);
    return std::make_unique<Done>();
  }
  void AllReduce(at::Tensor /*tensor*/, Op /*op*/) override {}
  void Barrier() override {}
  std::vector<std::string> AllGatherStrings(const std::string& mine) override { return {mine}; }
  std::unique_ptr<Collectives> Subgroup(const std::string& /*name*/, const std::vector<int>& /*ranks*/) override {
    return MakeSingleRankCollectives();
  }
  WireBytes bytes() const override { return {}; }
};

}  // namespace

std::unique_ptr<Collectives> MakeSingleRankCollectives() { return std::make_unique<SingleRank>(); }

}  // namespace mp::trainer
