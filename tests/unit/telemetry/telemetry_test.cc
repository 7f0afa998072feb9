#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/telemetry/exposition.h"
#include "server/telemetry/log_store.h"
#include "server/telemetry/metric_store.h"
#include "server/telemetry/series.h"

namespace mp {
namespace {

v1::TrainerEvent FrameEvent(int64_t step, double loss, int tensors = 0) {
  v1::TrainerEvent event;
  event.set_time(1000.0 + static_cast<double>(step));
  event.mutable_frame()->set_step(step);
  (*event.mutable_frame()->mutable_scalars())["loss"] = loss;
  for (int i = 0; i < tensors; ++i) {
    v1::TensorStat* tensor = event.mutable_frame()->add_tensors();
    tensor->set_layer(absl::StrCat("layer", i));
    tensor->set_kind(v1::TensorStat::INPUT);
    tensor->set_amax(2.0);
    tensor->set_scale(224.0);
    tensor->set_underflow_share(0.125 * i);
  }
  return event;
}

class TelemetryTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("telemetry_test-" + std::to_string(getpid()) +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<MetricStore> Open() { return MetricStore::Open(folder_ / "t.db").value(); }

  static v1::QueryMetricsResponse Query(MetricStore* store, const std::vector<std::string>& names, int rank = 0,
                                        int max_points = 0) {
    v1::QueryMetricsRequest request;
    for (const std::string& name : names) request.add_names(name);
    request.set_rank(rank);
    request.set_max_points(max_points);
    return store->Query("job", request).value();
  }

  std::filesystem::path folder_;
};

TEST_F(TelemetryTest, EachEventIsStoredOnceAndGapsAreRefused) {
  auto store = Open();
  ASSERT_TRUE(store->Append("job", 1, 0, 1, {FrameEvent(1, 5), FrameEvent(2, 4)}).ok());
  ASSERT_TRUE(store->Append("job", 1, 0, 2, {FrameEvent(2, 4), FrameEvent(3, 3)}).ok())
      << "a repeat with something new";
  EXPECT_EQ(store->Position("job", 1, 0).value(), 3);
  EXPECT_EQ(store->Append("job", 1, 0, 5, {FrameEvent(5, 1)}).code(), absl::StatusCode::kFailedPrecondition);
  store.reset();
  store = Open();
  EXPECT_EQ(store->Position("job", 1, 0).value(), 3);
  const auto response = Query(store.get(), {});
  ASSERT_EQ(response.series_size(), 1);
  EXPECT_THAT(response.series(0).steps(), testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(response.series(0).values(), testing::ElementsAre(5, 4, 3));
}

TEST_F(TelemetryTest, TheHighestAttemptsValueStands) {
  auto store = Open();
  ASSERT_TRUE(store->Append("job", 1, 0, 1, {FrameEvent(1, 5), FrameEvent(2, 4), FrameEvent(3, 9)}).ok());
  ASSERT_TRUE(store->Append("job", 2, 0, 1, {FrameEvent(3, 3), FrameEvent(4, 2)}).ok());
  EXPECT_THAT(Query(store.get(), {"loss"}).series(0).values(), testing::ElementsAre(5, 4, 3, 2));
}

TEST_F(TelemetryTest, NumbersThatAreNotFiniteAndEvaluationsAreKept) {
  auto store = Open();
  v1::TrainerEvent evaluation;
  evaluation.mutable_evaluation()->set_step(2);
  (*evaluation.mutable_evaluation()->mutable_metrics())["loss"] = 1.5;
  ASSERT_TRUE(store->Append("job", 1, 0, 1, {FrameEvent(1, NAN), FrameEvent(2, INFINITY), evaluation}).ok());
  const auto response = Query(store.get(), {});
  ASSERT_EQ(response.series_size(), 2);
  EXPECT_EQ(response.series(0).name(), "eval_loss");
  EXPECT_TRUE(std::isnan(response.series(1).values(0)));
  EXPECT_EQ(response.series(1).values(1), INFINITY);
}

TEST_F(TelemetryTest, TensorsAreSeriesByNameAndFewerPointsKeepTheLast) {
  auto store = Open();
  std::vector<v1::TrainerEvent> events;
  for (int step = 1; step <= 100; ++step) events.push_back(FrameEvent(step, step, 2));
  ASSERT_TRUE(store->Append("job", 1, 1, 1, events).ok());
  EXPECT_EQ(Query(store.get(), {"layer*/INPUT/scale"}, 1).series_size(), 2);
  EXPECT_EQ(Query(store.get(), {"layer*/INPUT/scale"}, 0).series_size(), 0);
  EXPECT_EQ(Query(store.get(), {"layer1/*"}, -1).series_size(), 4);
  const auto few = Query(store.get(), {"loss"}, 1, 7);
  EXPECT_LE(few.series(0).steps_size(), 7);
  EXPECT_EQ(*few.series(0).steps().rbegin(), 100);
}

TEST_F(TelemetryTest, FramesComeAfterACursor) {
  auto store = Open();
  ASSERT_TRUE(store->Append("job", 1, 0, 1, {FrameEvent(1, 5), FrameEvent(2, 4)}).ok());
  ASSERT_TRUE(store->Append("job", 1, 1, 1, {FrameEvent(1, 6)}).ok());
  EXPECT_EQ(store->FramesAfter("job", 0, -1, 10)->size(), 3U);
  EXPECT_EQ(store->FramesAfter("job", 1, 0, 10)->at(0).frame().step(), 2);
  EXPECT_EQ(store->LastSequence("job").value(), 3);
  EXPECT_TRUE(store->FramesAfter("other", 0, -1, 10)->empty());
}

TEST(SeriesTest, Patterns) {
  EXPECT_TRUE(MatchesPattern("model.layers.0.q/INPUT/amax", "model.*.q/*/amax"));
  EXPECT_TRUE(MatchesPattern("loss", "loss"));
  EXPECT_TRUE(MatchesPattern("loss", "*"));
  EXPECT_TRUE(MatchesPattern("aXbXc", "a*X*c"));
  EXPECT_FALSE(MatchesPattern("loss", "los"));
  EXPECT_FALSE(MatchesPattern("loss", "*z"));
  EXPECT_FALSE(MatchesPattern("", "?"));
}

TEST_F(TelemetryTest, LogsAreStoredByOffset) {
  LogStore logs(folder_ / "logs");
  EXPECT_EQ(logs.Append("u", 1, 0, 0, "hello\n").value(), 6);
  EXPECT_EQ(logs.Append("u", 1, 0, 3, "lo\nworld").value(), 11) << "what is known is left out";
  EXPECT_EQ(logs.Append("u", 1, 0, 20, "gap").value(), 11);
  EXPECT_EQ(logs.Append("u", 1, 0, 0, "hello").value(), 11);
  EXPECT_EQ(logs.Read("u", 1, 0, 0, 100).value(), "hello\nworld");
  EXPECT_EQ(logs.Read("u", 1, 0, 11, 100).value(), "");
  EXPECT_EQ(logs.Read("u", 2, 0, 0, 100).value(), "");
}

TEST_F(TelemetryTest, TailsAreFoundFromTheEnd) {
  LogStore logs(folder_ / "logs");
  std::string text;
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&text, "line ", i, "\n");
  ASSERT_TRUE(logs.Append("u", 1, 0, 0, text).ok());
  const int64_t offset = logs.TailOffset("u", 1, 0, 2).value();
  EXPECT_EQ(logs.Read("u", 1, 0, offset, 100).value(), "line 19998\nline 19999\n");
  EXPECT_EQ(logs.TailOffset("u", 1, 0, 1000000).value(), 0);
  ASSERT_TRUE(logs.Append("u", 1, 0, static_cast<int64_t>(text.size()), "unfinished").ok());
  EXPECT_EQ(logs.Read("u", 1, 0, logs.TailOffset("u", 1, 0, 1).value(), 100).value(), "unfinished");
}

std::string Exposed(Exposition* exposition) {
  return prometheus::TextSerializer().Serialize(exposition->registry()->Collect());
}

TEST(ExpositionTest, SeriesAreBoundedAndDisappearAfterTheEnd) {
  Exposition exposition(absl::Minutes(10));
  v1::Job job;
  job.set_name("job");
  job.set_state(v1::Job::RUNNING);
  exposition.Record("job", 0, {FrameEvent(7, 2.5, 50)});
  exposition.Record("job", 1, {FrameEvent(7, 2.5, 50), FrameEvent(8, NAN)});
  exposition.Update({job}, {}, absl::UnixEpoch());
  std::string text = Exposed(&exposition);
  EXPECT_THAT(text, testing::HasSubstr("mp_job_loss{job=\"job\"} 2.5"));
  EXPECT_THAT(text, testing::HasSubstr("mp_job_step{job=\"job\"} 7"));
  EXPECT_THAT(text, testing::HasSubstr("mp_fp8_underflow_share{job=\"job\",kind=\"INPUT\"} 6.125"));
  EXPECT_THAT(text, testing::HasSubstr("mp_fp8_amax_count{job=\"job\",kind=\"INPUT\"} 100"));
  EXPECT_THAT(text, testing::HasSubstr("mp_jobs{state=\"RUNNING\"} 1"));
  EXPECT_EQ(text.find("layer1"), std::string::npos) << "no tensor is a label";
  job.set_state(v1::Job::SUCCEEDED);
  exposition.Update({job}, {}, absl::UnixEpoch());
  exposition.Update({job}, {}, absl::UnixEpoch() + absl::Minutes(9));
  EXPECT_THAT(Exposed(&exposition), testing::HasSubstr("mp_job_loss"));
  exposition.Update({job}, {}, absl::UnixEpoch() + absl::Minutes(11));
  EXPECT_EQ(Exposed(&exposition).find("mp_job_loss{"), std::string::npos);
  EXPECT_THAT(Exposed(&exposition), testing::HasSubstr("mp_jobs{state=\"RUNNING\"} 0")) << "zeros are exported";
}

}  // namespace
}  // namespace mp
