#include "server/fleet/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/fleet/fake_cluster.h"

namespace mp {
namespace {

using M = v1::ControllerMessage;

class CoordinatorTest : public testing::Test {
 protected:
  FakeCluster cluster_;
  std::shared_ptr<FakeWorker> w0_ = cluster_.Connect("w0");
  std::shared_ptr<FakeWorker> w1_ = cluster_.Connect("w1");

  v1::Job::State State(const std::string& name) { return cluster_.Get(name).state(); }
  void EndBoth(const v1::AttemptId& id) {
    cluster_.AttemptEnded(w0_, id);
    cluster_.AttemptEnded(w1_, id);
  }
};

TEST_F(CoordinatorTest, AGangsWholeLife) {
  ASSERT_TRUE(cluster_.Submit("job").ok());
  EXPECT_EQ(State("job"), v1::Job::STARTING);
  const v1::AttemptId id = cluster_.Id("job");
  EXPECT_TRUE(w0_->Last(M::kPrepareAttempt)->prepare_attempt().hosts_rendezvous());
  EXPECT_FALSE(w1_->Last(M::kPrepareAttempt)->prepare_attempt().hosts_rendezvous());
  cluster_.Prepared(w1_, id, false);
  EXPECT_EQ(w1_->Last(M::kLaunchAttempt), nullptr) << "nobody starts before all are prepared";
  cluster_.Prepared(w0_, id, true);
  EXPECT_EQ(w1_->Last(M::kLaunchAttempt)->launch_attempt().rendezvous_port(), 4711);
  cluster_.RankStarted(w0_, id, 0);
  EXPECT_EQ(State("job"), v1::Job::STARTING);
  cluster_.RankStarted(w1_, id, 1);
  EXPECT_EQ(State("job"), v1::Job::RUNNING);
  cluster_.RankExited(w0_, id, 0, v1::END_CAUSE_SUCCEEDED);
  EXPECT_EQ(State("job"), v1::Job::RUNNING);
  cluster_.RankExited(w1_, id, 1, v1::END_CAUSE_SUCCEEDED);
  EXPECT_EQ(State("job"), v1::Job::STOPPING);
  cluster_.AttemptEnded(w0_, id);
  EXPECT_EQ(State("job"), v1::Job::STOPPING) << "not before every process is reaped";
  cluster_.AttemptEnded(w1_, id);
  EXPECT_EQ(State("job"), v1::Job::SUCCEEDED);
  EXPECT_EQ(w0_->Last(M::kForgetAttempt)->forget_attempt().id().attempt(), 1);
}

TEST_F(CoordinatorTest, CancelInEveryState) {
  ASSERT_TRUE(cluster_.Submit("pending", 9).ok());
  v1::CancelJobRequest request;
  request.set_name("pending");
  EXPECT_EQ(cluster_.coordinator().CancelJob(request)->state(), v1::Job::CANCELLED);

  ASSERT_TRUE(cluster_.Submit("starting").ok());
  request.set_name("starting");
  EXPECT_EQ(cluster_.coordinator().CancelJob(request)->state(), v1::Job::STOPPING);
  EXPECT_NE(w0_->Last(M::kStopAttempt), nullptr);
  const v1::AttemptId id = cluster_.Id("starting");
  cluster_.Prepared(w0_, id, true);  // was on its way
  cluster_.Prepared(w1_, id, false);
  EXPECT_EQ(w0_->Last(M::kLaunchAttempt), nullptr) << "a cancelled start launches nothing";
  EndBoth(id);
  EXPECT_EQ(State("starting"), v1::Job::CANCELLED);

  const v1::AttemptId running = cluster_.Run("running", w0_, w1_);
  cluster_.RankExited(w0_, running, 0, v1::END_CAUSE_RANK_DIED);
  EXPECT_EQ(State("running"), v1::Job::STOPPING);
  request.set_name("running");
  ASSERT_TRUE(cluster_.coordinator().CancelJob(request).ok());
  EndBoth(running);
  EXPECT_EQ(State("running"), v1::Job::CANCELLED) << "cancelled while it was to be restarted";
  EXPECT_TRUE(cluster_.coordinator().CancelJob(request).ok()) << "twice is once";

  const v1::AttemptId done = cluster_.Run("done", w0_, w1_);
  for (int rank : {0, 1}) cluster_.RankExited(rank == 0 ? w0_ : w1_, done, rank, v1::END_CAUSE_SUCCEEDED);
  EndBoth(done);
  request.set_name("done");
  EXPECT_EQ(cluster_.coordinator().CancelJob(request).status().code(), absl::StatusCode::kFailedPrecondition);
  request.set_name("nobody");
  EXPECT_EQ(cluster_.coordinator().CancelJob(request).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CoordinatorTest, AMissingFileIsNotTriedAgain) {
  ASSERT_TRUE(cluster_.Submit("job").ok());
  const v1::AttemptId id = cluster_.Id("job");
  cluster_.Prepared(w1_, id, false, "host w1: /data/x: No such file");
  EXPECT_EQ(State("job"), v1::Job::STOPPING);
  EndBoth(id);
  const v1::Job job = cluster_.Get("job");
  EXPECT_EQ(job.state(), v1::Job::FAILED);
  EXPECT_EQ(job.stop_cause(), v1::END_CAUSE_MISSING_FILE);
  EXPECT_THAT(job.message(), testing::HasSubstr("host w1: /data/x"));
}

TEST_F(CoordinatorTest, ADeadRankRestartsTheGangFromTheLatestCheckpointUntilTheBudgetIsGone) {
  v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  for (int attempt = 1; attempt <= 3; ++attempt) {
    EXPECT_EQ(cluster_.Get("job").attempt(), attempt);
    EXPECT_EQ(w0_->Last(M::kPrepareAttempt)->prepare_attempt().resume_from(), attempt == 1 ? "" : "latest");
    cluster_.RankExited(w1_, id, 1, v1::END_CAUSE_RANK_DIED);
    EXPECT_EQ(w0_->Last(M::kStopAttempt)->stop_attempt().id().attempt(), attempt);
    EndBoth(id);
    if (attempt == 3) break;
    EXPECT_EQ(State("job"), v1::Job::STARTING);
    id = cluster_.Id("job");
    cluster_.Prepared(w0_, id, true);
    cluster_.Prepared(w1_, id, false);
    cluster_.RankStarted(w0_, id, 0);
    cluster_.RankStarted(w1_, id, 1);
  }
  EXPECT_EQ(State("job"), v1::Job::FAILED);
}

TEST_F(CoordinatorTest, TheRootCauseIsKept) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  cluster_.RankExited(w0_, id, 0, v1::END_CAUSE_PEER_LOST);
  cluster_.RankExited(w1_, id, 1, v1::END_CAUSE_OUT_OF_MEMORY);
  EndBoth(id);
  EXPECT_EQ(cluster_.Get("job").attempts(0).cause(), v1::END_CAUSE_OUT_OF_MEMORY);
}

TEST_F(CoordinatorTest, MessagesOfAnOlderAttemptHaveNoEffect) {
  const v1::AttemptId old = cluster_.Run("job", w0_, w1_);
  cluster_.RankExited(w1_, old, 1, v1::END_CAUSE_RANK_DIED);
  EndBoth(old);
  ASSERT_EQ(cluster_.Get("job").attempt(), 2);
  cluster_.RankExited(w1_, old, 0, v1::END_CAUSE_BAD_CONFIG);
  cluster_.AttemptEnded(w0_, old);
  cluster_.AttemptEnded(w1_, old);
  cluster_.Prepared(w0_, old, true, "late", v1::END_CAUSE_MISSING_FILE);
  EXPECT_EQ(State("job"), v1::Job::STARTING);
  EXPECT_FALSE(cluster_.coordinator().Accepts(old, 0));
  v1::WorkerMessage question;
  *question.mutable_checkpoint_question()->mutable_id() = old;
  cluster_.coordinator().Receive(w0_, question);
  EXPECT_FALSE(w0_->Last(M::kCheckpointAnswer)->checkpoint_answer().permission().granted());
}

TEST_F(CoordinatorTest, CheckpointsArePermittedWhileItRunsAlone) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  v1::WorkerMessage question;
  *question.mutable_checkpoint_question()->mutable_id() = id;
  question.mutable_checkpoint_question()->mutable_request()->set_step(60);
  cluster_.coordinator().Receive(w0_, question);
  EXPECT_TRUE(w0_->Last(M::kCheckpointAnswer)->checkpoint_answer().permission().granted());
  EXPECT_EQ(w0_->Last(M::kCheckpointAnswer)->checkpoint_answer().permission().step(), 60);
  cluster_.RankExited(w1_, id, 1, v1::END_CAUSE_RANK_DIED);
  cluster_.coordinator().Receive(w0_, question);
  EXPECT_FALSE(w0_->Last(M::kCheckpointAnswer)->checkpoint_answer().permission().granted());
}

TEST_F(CoordinatorTest, ALostWorkersDevicesAreFreeOnlyAfterLeaseAndGrace) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  cluster_.coordinator().Disconnected(w1_);
  cluster_.Advance(absl::Seconds(50));
  cluster_.Heartbeat(w0_);
  EXPECT_EQ(State("job"), v1::Job::RUNNING) << "away for less than the lease costs nothing";
  cluster_.Advance(absl::Seconds(14));
  EXPECT_EQ(State("job"), v1::Job::RUNNING);
  cluster_.Heartbeat(w0_);
  cluster_.Advance(absl::Seconds(2));
  EXPECT_EQ(State("job"), v1::Job::STOPPING);
  cluster_.AttemptEnded(w0_, id);
  const v1::Job job = cluster_.Get("job");
  EXPECT_EQ(job.state(), v1::Job::PENDING);
  EXPECT_EQ(job.attempts(0).cause(), v1::END_CAUSE_WORKER_LOST);
  w1_ = cluster_.Connect("w1", "2");
  EXPECT_EQ(State("job"), v1::Job::STARTING);
}

TEST_F(CoordinatorTest, AWorkerThatComesBackWithItsRanksKeepsThem) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  cluster_.coordinator().Disconnected(w1_);
  w1_ = cluster_.Connect("w1", "1", {Held(id, 1)});
  EXPECT_EQ(w1_->Last(M::kRegistered)->registered().keep_size(), 1);
  EXPECT_EQ(State("job"), v1::Job::RUNNING);
}

TEST_F(CoordinatorTest, ARestartedWorkerHasLostItsRanks) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  cluster_.coordinator().Disconnected(w1_);
  w1_ = cluster_.Connect("w1", "2");
  EXPECT_EQ(State("job"), v1::Job::STOPPING);
  cluster_.AttemptEnded(w0_, id);
  EXPECT_EQ(cluster_.Get("job").attempts(0).cause(), v1::END_CAUSE_WORKER_LOST);
}

TEST_F(CoordinatorTest, AWorkerThatSleptPastItsLeaseIsFenced) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  cluster_.Advance(absl::Seconds(40));
  cluster_.Heartbeat(w0_);
  cluster_.Advance(absl::Seconds(30));
  EXPECT_TRUE(w1_->is_closed);
  cluster_.AttemptEnded(w0_, id);
  EXPECT_EQ(State("job"), v1::Job::PENDING);
  auto back = cluster_.Connect("w1", "1", {Held(id, 1)});
  EXPECT_EQ(back->Last(M::kRegistered)->registered().keep_size(), 0) << "it is told to end what it holds";
  EXPECT_EQ(State("job"), v1::Job::PENDING) << "and gets nothing new before it has";
  cluster_.AttemptEnded(back, id);
  EXPECT_EQ(State("job"), v1::Job::STARTING);
}

TEST_F(CoordinatorTest, TwoLiveWorkersCannotShareAName) {
  auto thief = std::make_shared<FakeWorker>();
  EXPECT_EQ(cluster_.TryConnect(thief, "w0", "2", {}, 1).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CoordinatorTest, ANodesNameIsPlain) {
  auto worker = std::make_shared<FakeWorker>();
  for (const std::string& name :
       {std::string("two words"), std::string("a\nb"), std::string("a/b"), std::string(300, 'a')}) {
    EXPECT_EQ(cluster_.TryConnect(worker, name, "2", {}, 1).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(cluster_.TryConnect(worker, "p5-host_1.example.org", "2", {}, 1).ok());
}

TEST_F(CoordinatorTest, AControllersRestartLeavesARunningJobAlone) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  cluster_.RestartController();
  EXPECT_EQ(State("job"), v1::Job::RUNNING);
  w0_ = cluster_.Connect("w0", "1", {Held(id, 0)});
  w1_ = cluster_.Connect("w1", "1", {Held(id, 1)});
  EXPECT_EQ(State("job"), v1::Job::RUNNING);
  EXPECT_EQ(w0_->Count(M::kPrepareAttempt) + w0_->Count(M::kLaunchAttempt) + w0_->Count(M::kStopAttempt), 0)
      << "nothing is run twice";
  for (int rank : {0, 1}) cluster_.RankExited(rank == 0 ? w0_ : w1_, id, rank, v1::END_CAUSE_SUCCEEDED);
  EndBoth(id);
  EXPECT_EQ(State("job"), v1::Job::SUCCEEDED);
}

TEST_F(CoordinatorTest, WhatEndedWhileTheControllerWasAwayIsLearned) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  cluster_.RestartController();
  for (int rank : {0, 1}) {
    v1::HeldAttempt held = Held(id, rank, true, true);
    held.mutable_ranks(0)->mutable_exited()->set_rank(rank);
    held.mutable_ranks(0)->mutable_exited()->set_cause(v1::END_CAUSE_SUCCEEDED);
    (rank == 0 ? w0_ : w1_) = cluster_.Connect(rank == 0 ? "w0" : "w1", "1", {held});
  }
  EXPECT_EQ(State("job"), v1::Job::SUCCEEDED);
}

TEST_F(CoordinatorTest, ARestartedControllerHonoursTheLeasesItGave) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  ASSERT_TRUE(cluster_.Submit("next").ok());
  cluster_.RestartController();
  w0_ = cluster_.Connect("w0", "1", {Held(id, 0)});
  cluster_.Advance(absl::Seconds(30));
  cluster_.Heartbeat(w0_);
  EXPECT_EQ(State("job"), v1::Job::RUNNING) << "w1 may still be running its rank";
  EXPECT_EQ(State("next"), v1::Job::PENDING);
  cluster_.Advance(absl::Seconds(36));
  EXPECT_EQ(State("job"), v1::Job::STOPPING);
}

TEST_F(CoordinatorTest, AnUnfinishedStartIsGivenUpAtARestartWithoutACharge) {
  ASSERT_TRUE(cluster_.Submit("job", 2, "restart: {max_attempts: 1}").ok());
  const v1::AttemptId id = cluster_.Id("job");
  cluster_.RestartController();
  EXPECT_EQ(State("job"), v1::Job::STOPPING);
  w0_ = cluster_.Connect("w0", "1", {Held(id, 0, false)});
  EXPECT_NE(w0_->Last(M::kStopAttempt), nullptr);
  w1_ = cluster_.Connect("w1", "1");
  cluster_.AttemptEnded(w0_, id);
  EXPECT_EQ(cluster_.Get("job").attempt(), 2);
  EXPECT_EQ(State("job"), v1::Job::STARTING);
}

TEST_F(CoordinatorTest, ACancelSurvivesTheControllersRestart) {
  const v1::AttemptId id = cluster_.Run("job", w0_, w1_);
  v1::CancelJobRequest request;
  request.set_name("job");
  ASSERT_TRUE(cluster_.coordinator().CancelJob(request).ok());
  cluster_.RestartController();
  w0_ = cluster_.Connect("w0", "1", {Held(id, 0)});
  w1_ = cluster_.Connect("w1", "1", {Held(id, 1)});
  EXPECT_NE(w1_->Last(M::kStopAttempt), nullptr);
  EndBoth(id);
  EXPECT_EQ(State("job"), v1::Job::CANCELLED);
}

TEST_F(CoordinatorTest, AStartThatTakesTooLongFailsWithItsCause) {
  ASSERT_TRUE(cluster_.Submit("job", 2, "restart: {max_attempts: 1}").ok());
  const v1::AttemptId id = cluster_.Id("job");
  for (int i = 0; i < 5; ++i) {
    cluster_.Advance(absl::Seconds(30));
    cluster_.Heartbeat(w0_);
    cluster_.Heartbeat(w1_);
  }
  EXPECT_EQ(State("job"), v1::Job::STOPPING);
  EndBoth(id);
  EXPECT_EQ(cluster_.Get("job").stop_cause(), v1::END_CAUSE_START_FAILED);
}

TEST_F(CoordinatorTest, TheTimeLimitHolds) {
  ASSERT_TRUE(cluster_.Submit("job", 2, "scheduling: {time_limit: 45s}").ok());
  const v1::AttemptId id = cluster_.Id("job");
  cluster_.Prepared(w0_, id, true);
  cluster_.Prepared(w1_, id, false);
  cluster_.RankStarted(w0_, id, 0);
  cluster_.RankStarted(w1_, id, 1);
  cluster_.Advance(absl::Seconds(44));
  EXPECT_EQ(State("job"), v1::Job::RUNNING);
  cluster_.Advance(absl::Seconds(2));
  EXPECT_EQ(State("job"), v1::Job::STOPPING);
  EndBoth(id);
  EXPECT_EQ(State("job"), v1::Job::FAILED);
  EXPECT_EQ(cluster_.Get("job").stop_cause(), v1::END_CAUSE_TIME_LIMIT);
}

TEST_F(CoordinatorTest, RequestIdsMakeASubmitOnce) {
  v1::CreateJobRequest request;
  request.set_spec_document("{name: once, workload: {command: [w]}, resources: {nodes: 9}}");
  request.set_request_id("6a8f0e0e-54d6-4b5e-8f0a-111111111111");
  const std::string uid = cluster_.coordinator().CreateJob(request)->uid();
  EXPECT_EQ(cluster_.coordinator().CreateJob(request)->uid(), uid);
  cluster_.RestartController();
  EXPECT_EQ(cluster_.coordinator().CreateJob(request)->uid(), uid);
  request.set_request_id("another");
  EXPECT_EQ(cluster_.coordinator().CreateJob(request).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CoordinatorTest, PagesGoThroughAllJobsOnce) {
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(cluster_.Submit("job-" + std::to_string(i), 9).ok());
  v1::ListJobsRequest request;
  request.set_page_size(3);
  std::vector<std::string> names;
  do {
    const auto page = cluster_.coordinator().ListJobs(request);
    ASSERT_TRUE(page.ok());
    for (const v1::Job& job : page->jobs()) names.push_back(job.name());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(names, testing::ElementsAre("job-6", "job-5", "job-4", "job-3", "job-2", "job-1", "job-0"));
  request.set_page_size(-1);
  EXPECT_FALSE(cluster_.coordinator().ListJobs(request).ok());
  request.set_page_size(1);
  request.set_page_token("junk");
  EXPECT_FALSE(cluster_.coordinator().ListJobs(request).ok());
}

TEST_F(CoordinatorTest, EventsRiseByOneAndSurvive) {
  cluster_.Run("job", w0_, w1_);
  cluster_.RestartController();
  const auto events = cluster_.coordinator().Events("job", 0, 100);
  ASSERT_TRUE(events.ok());
  ASSERT_GE(events->size(), 4U);
  for (size_t i = 0; i < events->size(); ++i) EXPECT_EQ((*events)[i].sequence(), static_cast<int64_t>(i + 1));
  EXPECT_EQ((*events)[0].type(), v1::JobEvent::SUBMITTED);
}

}  // namespace
}  // namespace mp
