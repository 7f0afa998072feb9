// Wakes streams when something they may have to send has changed. Streams look for themselves what that is, so a wake
// too many costs a look and none is lost.
//
// Notify may be called under any lock: subscribers run on the hub's own thread. Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace mp {

class ChangeHub {
 public:
  ChangeHub();
  ~ChangeHub();
  ChangeHub(const ChangeHub&) = delete;
  ChangeHub& operator=(const ChangeHub&) = delete;

  void Notify();
  int64_t Subscribe(std::function<void()> wake);
  // After it returns, `wake` does not run any more.
  void Unsubscribe(int64_t id);

 private:
  void Run();

  absl::Mutex mutex_;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Mutex subscribers_mutex_;  // held while they run
  std::map<int64_t, std::function<void()>> subscribers_ ABSL_GUARDED_BY(subscribers_mutex_);
  int64_t next_id_ ABSL_GUARDED_BY(subscribers_mutex_) = 1;
  std::thread thread_;
};

}  // namespace mp
