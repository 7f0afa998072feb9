#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <cmath>

#include "mp/v1/trainer.pb.h"
#include "worker/trainer/report/event_lines.h"

namespace mp {
namespace {

v1::TrainerEvent Parse(const std::string& field) {
  const std::string line = trainer::EventLine(1764592661.25, 3, field);
  EXPECT_EQ(line.back(), '\n');
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  v1::TrainerEvent event;
  const auto status = google::protobuf::util::JsonStringToMessage(line, &event);
  EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << line;
  EXPECT_EQ(event.rank(), 3);
  EXPECT_EQ(event.time(), 1764592661.25);
  return event;
}

TEST(ReportProtocolTest, AFrameKeepsNumbersThatAreNotFinite) {
  const v1::Frame frame = Parse(trainer::FrameField(1LL << 40, {{"loss", NAN}, {"grad_norm", INFINITY}, {"lr", 1e-7}},
                                                    {{"model.layers.0.q", "GRAD_OUTPUT", INFINITY, 3.5, 0.25, 1}}))
                              .frame();
  EXPECT_EQ(frame.step(), 1LL << 40);
  EXPECT_TRUE(std::isnan(frame.scalars().at("loss")));
  EXPECT_EQ(frame.scalars().at("grad_norm"), INFINITY);
  EXPECT_EQ(frame.scalars().at("lr"), 1e-7);
  ASSERT_EQ(frame.tensors_size(), 1);
  EXPECT_EQ(frame.tensors(0).kind(), v1::TensorStat::GRAD_OUTPUT);
  EXPECT_EQ(frame.tensors(0).amax(), INFINITY);
  EXPECT_EQ(frame.tensors(0).underflow_share(), 0.25);
}

TEST(ReportProtocolTest, EveryEventIsOneOfTheProtocol) {
  EXPECT_EQ(Parse(trainer::StartedField(2, 123)).started().parameters(), 123);
  EXPECT_EQ(Parse(trainer::PrecisionPlanField({{"a", "BF16", "odd \"dim\"\n"}})).precision_plan().layers(0).reason(),
            "odd \"dim\"\n");
  EXPECT_EQ(Parse(trainer::EvaluationField(4, {{"loss", 2.0}})).evaluation().metrics().at("loss"), 2.0);
  EXPECT_EQ(Parse(trainer::CheckpointRequestField(4, "p")).checkpoint_request().path(), "p");
  EXPECT_EQ(Parse(trainer::CheckpointSavedField(4, "p", 5, 0.5)).checkpoint_saved().bytes(), 5);
  EXPECT_EQ(Parse(trainer::CheckpointDamagedField("p", "r")).checkpoint_damaged().reason(), "r");
  EXPECT_EQ(Parse(trainer::ResumedField(4, "p")).resumed().step(), 4);
  EXPECT_EQ(Parse(trainer::FinishedField(4, {})).finished().step(), 4);
  const v1::Failed failed = Parse(trainer::FailedField("END_CAUSE_NON_FINITE", "what", 9)).failed();
  EXPECT_EQ(failed.cause(), v1::END_CAUSE_NON_FINITE);
  EXPECT_EQ(failed.step(), 9);
}

}  // namespace
}  // namespace mp
