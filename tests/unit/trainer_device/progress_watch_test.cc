#include "worker/trainer/device/cuda/progress_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

namespace mp::trainer {
namespace {

using std::chrono::milliseconds;

TEST(ProgressWatchTest, AWorkThatStandsStillIsLostAfterTheTimeout) {
  std::promise<std::string> lost;
  const auto began = std::chrono::steady_clock::now();
  ProgressWatch watch(milliseconds(300), [&](const std::string& what) { lost.set_value(what); });
  watch.Add("all-gather", [] { return true; });
  watch.Add("reduce-scatter", [] { return false; });
  EXPECT_EQ(lost.get_future().get(), "peer lost in reduce-scatter: no progress for 0 s");
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(300));
}

TEST(ProgressWatchTest, AFailureIsLostAtOnce) {
  std::promise<std::string> lost;
  ProgressWatch watch(std::chrono::hours(1), [&](const std::string& what) { lost.set_value(what); });
  watch.Add("all-reduce", []() -> bool { throw std::runtime_error("remote process exited"); });
  EXPECT_EQ(lost.get_future().get(), "peer lost in all-reduce: remote process exited");
}

TEST(ProgressWatchTest, ALongQueueThatMovesIsNotLost) {
  // Each work takes less than the timeout, all together much more.
  std::atomic<bool> lost{false};
  std::promise<void> through;
  ProgressWatch watch(milliseconds(400), [&](const std::string&) { lost = true; });
  for (int i = 0; i < 8; ++i) {
    watch.Add("step", [asked = 0]() mutable { return ++asked > 3; });
  }
  watch.Add("last", [&] {
    through.set_value();
    return true;
  });
  through.get_future().get();
  EXPECT_FALSE(lost);
}

}  // namespace
}  // namespace mp::trainer
