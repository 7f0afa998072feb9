// Watches enqueued collectives for progress: a GPU's stream stands still for ever when a peer is gone, and nobody waits
// for it.
//
// Time counts from the last progress, not from when the work was enqueued: the host runs many steps ahead.
// Thread-safety: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace mp::trainer {

class ProgressWatch {
 public:
  // `on_lost` is called once, on this watch's thread.
  ProgressWatch(std::chrono::milliseconds timeout, std::function<void(const std::string&)> on_lost);
  ~ProgressWatch();
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;

  // Asked repeatedly, in order: true when the work is done; throws when it failed. `what` is for the message.
  void Add(std::string what, std::function<bool()> is_done);

 private:
  struct Work {
    std::string what;
    std::function<bool()> is_done;
  };
  void Run();

  const std::chrono::milliseconds timeout_;
  const std::function<void(const std::string&)> on_lost_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> works_;  // guarded by mutex_
  bool stopping_ = false;   // guarded by mutex_
  std::thread thread_;
};

}  // namespace mp::trainer
