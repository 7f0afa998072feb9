#include "server/job/state_machine.h"

#include <gtest/gtest.h>

namespace mp {
namespace {

v1::Job JobWith(std::initializer_list<v1::EndCause> attempts, int budget) {
  v1::Job job;
  job.mutable_spec()->mutable_restart()->set_max_attempts(budget);
  for (const v1::EndCause cause : attempts) job.add_attempts()->set_cause(cause);
  return job;
}

TEST(StateMachineTest, AFinalStateIsFinal) {
  for (int from = v1::Job::PENDING; from <= v1::Job::SUSPENDED; ++from) {
    for (int to = v1::Job::PENDING; to <= v1::Job::SUSPENDED; ++to) {
      const auto state = static_cast<v1::Job::State>(from);
      v1::Job job;
      job.set_state(state);
      const absl::Status status =
          Transition(&job, static_cast<v1::Job::State>(to), v1::END_CAUSE_RANK_DIED, "m", absl::UnixEpoch());
      EXPECT_EQ(status.ok(), IsLegalTransition(state, static_cast<v1::Job::State>(to)));
      if (IsFinal(state)) {
        EXPECT_FALSE(status.ok());
      }
      if (!status.ok()) {
        EXPECT_EQ(job.state(), state) << "a refused transition changes nothing";
      }
    }
  }
}

TEST(StateMachineTest, TimesAndCausesGoWithTheStates) {
  v1::Job job;
  job.set_state(v1::Job::PENDING);
  job.mutable_pending_reason()->set_code(v1::PendingReason::WAITING_FOR_DEVICES);
  ASSERT_TRUE(Transition(&job, v1::Job::STARTING, v1::END_CAUSE_UNSPECIFIED, "", absl::FromUnixSeconds(10)).ok());
  EXPECT_FALSE(job.has_pending_reason());
  ASSERT_TRUE(Transition(&job, v1::Job::RUNNING, v1::END_CAUSE_UNSPECIFIED, "", absl::FromUnixSeconds(20)).ok());
  EXPECT_EQ(job.start_time().seconds(), 20);
  ASSERT_TRUE(Transition(&job, v1::Job::STOPPING, v1::END_CAUSE_RANK_DIED, "", absl::FromUnixSeconds(30)).ok());
  EXPECT_EQ(job.stop_cause(), v1::END_CAUSE_RANK_DIED);
  EXPECT_FALSE(job.has_end_time());
  ASSERT_TRUE(Transition(&job, v1::Job::PENDING, v1::END_CAUSE_RANK_DIED, "", absl::FromUnixSeconds(40)).ok());
  EXPECT_EQ(job.stop_cause(), v1::END_CAUSE_UNSPECIFIED);
  ASSERT_TRUE(Transition(&job, v1::Job::CANCELLED, v1::END_CAUSE_CANCELLED, "", absl::FromUnixSeconds(50)).ok());
  EXPECT_EQ(job.end_time().seconds(), 50);
  EXPECT_EQ(job.start_time().seconds(), 20);
}

TEST(StateMachineTest, RestartsWhatAnotherTryCanMendWithinTheBudget) {
  EXPECT_EQ(AfterAttempt(JobWith({v1::END_CAUSE_RANK_DIED}, 3), v1::END_CAUSE_RANK_DIED, "").state, v1::Job::PENDING);
  EXPECT_EQ(
      AfterAttempt(JobWith({v1::END_CAUSE_RANK_DIED, v1::END_CAUSE_WORKER_LOST}, 2), v1::END_CAUSE_WORKER_LOST, "")
          .state,
      v1::Job::FAILED);
  for (const v1::EndCause cause : {v1::END_CAUSE_BAD_CONFIG, v1::END_CAUSE_BAD_DATA, v1::END_CAUSE_MISSING_FILE,
                                   v1::END_CAUSE_NON_FINITE, v1::END_CAUSE_TIME_LIMIT}) {
    EXPECT_EQ(AfterAttempt(JobWith({cause}, 9), cause, "").state, v1::Job::FAILED) << v1::EndCause_Name(cause);
  }
  EXPECT_EQ(AfterAttempt(JobWith({v1::END_CAUSE_CANCELLED}, 9), v1::END_CAUSE_CANCELLED, "").state, v1::Job::CANCELLED);
  EXPECT_EQ(AfterAttempt(JobWith({v1::END_CAUSE_SUCCEEDED}, 1), v1::END_CAUSE_SUCCEEDED, "").state, v1::Job::SUCCEEDED);
}

TEST(StateMachineTest, AControllersRestartCostsNoAttempt) {
  EXPECT_EQ(
      AfterAttempt(JobWith({v1::END_CAUSE_CONTROLLER_RESTARTED}, 1), v1::END_CAUSE_CONTROLLER_RESTARTED, "").state,
      v1::Job::PENDING);
  EXPECT_EQ(AfterAttempt(JobWith({v1::END_CAUSE_CONTROLLER_RESTARTED, v1::END_CAUSE_RANK_DIED}, 2),
                         v1::END_CAUSE_RANK_DIED, "")
                .state,
            v1::Job::PENDING);
}

TEST(StateMachineTest, ALostPeerDoesNotHideWhoDied) {
  EXPECT_TRUE(IsNearerToRoot(v1::END_CAUSE_RANK_DIED, v1::END_CAUSE_PEER_LOST));
  EXPECT_TRUE(IsNearerToRoot(v1::END_CAUSE_OUT_OF_MEMORY, v1::END_CAUSE_RANK_DIED));
  EXPECT_TRUE(IsNearerToRoot(v1::END_CAUSE_CANCELLED, v1::END_CAUSE_OUT_OF_MEMORY));
  EXPECT_FALSE(IsNearerToRoot(v1::END_CAUSE_PEER_LOST, v1::END_CAUSE_PEER_LOST));
}

}  // namespace
}  // namespace mp
