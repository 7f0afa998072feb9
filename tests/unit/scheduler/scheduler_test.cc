#include "server/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mp {
namespace {

using Class = v1::ResourceSpec;

NodeSnapshot Node(const std::string& name, Class::NodeClass node_class, std::vector<int> free, int devices = 2) {
  NodeSnapshot node;
  node.name = name;
  node.node_class = node_class;
  node.devices = devices;
  node.free_devices = std::move(free);
  node.ready = true;
  return node;
}

PendingJob Job(const std::string& name, int nodes, int devices, Class::NodeClass node_class = Class::CPU) {
  PendingJob job;
  job.name = name;
  job.nodes = nodes;
  job.devices_per_node = devices;
  job.node_class = node_class;
  return job;
}

v1::PendingReason::Code Code(const Decision& decision) {
  const auto* reason = std::get_if<v1::PendingReason>(&decision.result);
  return reason == nullptr ? v1::PendingReason::CODE_UNSPECIFIED : reason->code();
}

const std::vector<v1::Placement>* Placed(const Decision& decision) {
  return std::get_if<std::vector<v1::Placement>>(&decision.result);
}

TEST(SchedulerTest, PlacesAWholeGangWithRanksInOrder) {
  const auto decisions = Schedule(
      {{Node("a", Class::CPU, {0, 1}), Node("b", Class::CPU, {1}), Node("c", Class::CPU, {0, 1})}, {Job("j", 2, 2)}});
  const auto* placed = Placed(decisions[0]);
  ASSERT_NE(placed, nullptr);
  ASSERT_EQ(placed->size(), 2U);
  EXPECT_EQ((*placed)[0].node(), "a");
  EXPECT_EQ((*placed)[1].node(), "c");
  EXPECT_EQ((*placed)[1].first_rank(), 2);
  EXPECT_THAT((*placed)[1].devices(), testing::ElementsAre(0, 1));
}

TEST(SchedulerTest, PlacementsOfOnePassDoNotOverlap) {
  const auto decisions = Schedule({{Node("a", Class::CPU, {0, 1})}, {Job("x", 1, 1), Job("y", 1, 1), Job("z", 1, 1)}});
  EXPECT_NE((*Placed(decisions[0]))[0].devices(0), (*Placed(decisions[1]))[0].devices(0));
  EXPECT_EQ(Code(decisions[2]), v1::PendingReason::WAITING_FOR_DEVICES);
  EXPECT_THAT(std::get<v1::PendingReason>(decisions[2].result).message(), testing::HasSubstr("held by x, y"));
}

TEST(SchedulerTest, FirstInFirstOutButAnImpossibleJobBlocksNobody) {
  const auto decisions = Schedule({{Node("a", Class::CPU, {0}), Node("b", Class::CPU, {})},
                                   {Job("huge", 9, 1), Job("both", 2, 1), Job("small", 1, 1)}});
  EXPECT_EQ(Code(decisions[0]), v1::PendingReason::EXCEEDS_CLUSTER);
  EXPECT_EQ(Code(decisions[1]), v1::PendingReason::WAITING_FOR_DEVICES);
  EXPECT_EQ(Code(decisions[2]), v1::PendingReason::WAITING_FOR_DEVICES);
  EXPECT_THAT(std::get<v1::PendingReason>(decisions[2].result).message(), testing::HasSubstr("behind job both"));
}

TEST(SchedulerTest, Fp8GoesToP5Alone) {
  PendingJob fp8 = Job("fp8", 1, 1, Class::P5);
  fp8.fp8 = true;
  EXPECT_EQ(Code(Schedule({{Node("a100", Class::P4, {0, 1})}, {fp8}})[0]), v1::PendingReason::NO_FP8_CAPABLE_NODE);
  const auto decisions = Schedule({{Node("a100", Class::P4, {0, 1}), Node("h100", Class::P5, {0, 1})}, {fp8}});
  EXPECT_EQ((*Placed(decisions[0]))[0].node(), "h100");
}

TEST(SchedulerTest, LabelsNarrow) {
  PendingJob job = Job("j", 1, 1);
  job.labels = {{"zone", "b"}};
  NodeSnapshot other = Node("a", Class::CPU, {0});
  other.labels = {{"zone", "a"}};
  EXPECT_EQ(Code(Schedule({{other}, {job}})[0]), v1::PendingReason::NO_MATCHING_NODE);
  NodeSnapshot right = Node("b", Class::CPU, {0});
  right.labels = {{"zone", "b"}, {"disk", "fast"}};
  EXPECT_EQ((*Placed(Schedule({{other, right}, {job}})[0]))[0].node(), "b");
}

TEST(SchedulerTest, NodesThatAreAwayTakeNothing) {
  NodeSnapshot away = Node("a", Class::CPU, {0});
  away.ready = false;
  EXPECT_EQ(Code(Schedule({{away}, {Job("j", 1, 1)}})[0]), v1::PendingReason::WAITING_FOR_DEVICES);
  EXPECT_EQ(Code(Schedule({{}, {Job("j", 1, 1)}, true})[0]), v1::PendingReason::RECOVERING);
}

}  // namespace
}  // namespace mp
