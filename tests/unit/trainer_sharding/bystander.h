#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/sharding/collectives.h"

namespace mp::trainer {

// A world in which nothing is sent: for initialisation alone.
class Bystander : public Collectives {
 public:
  Bystander(int rank, int world) : rank_(rank), world_(world) {}
  int rank() const override { return rank_; }
  int world_size() const override { return world_; }
  std::unique_ptr<Pending> AllGather(at::Tensor, at::Tensor) override { return nullptr; }
  std::unique_ptr<Pending> ReduceScatter(at::Tensor, at::Tensor) override { return nullptr; }
  void AllReduce(at::Tensor, Op) override {}
  void Barrier() override {}
  std::vector<std::string> AllGatherStrings(const std::string& mine) override { return {mine}; }
  std::unique_ptr<Collectives> Subgroup(const std::string&, const std::vector<int>& ranks) override {
    const auto place = std::find(ranks.begin(), ranks.end(), rank_);
    return std::make_unique<Bystander>(static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size()));
  }
  WireBytes bytes() const override { return {}; }

 private:
  int rank_;
  int world_;
};

}  // namespace mp::trainer
