#include "server/api/change_hub.h"

namespace mp {

ChangeHub::ChangeHub() : thread_([this] { Run(); }) {}

ChangeHub::~ChangeHub() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void ChangeHub::Notify() {
  const absl::MutexLock lock(&mutex_);
  changed_ = true;
}

int64_t ChangeHub::Subscribe(std::function<void()> wake) {
  const absl::MutexLock lock(&subscribers_mutex_);
  subscribers_.emplace(next_id_, std::move(wake));
  return next_id_++;
}

void ChangeHub::Unsubscribe(int64_t id) {
  const absl::MutexLock lock(&subscribers_mutex_);
  subscribers_.erase(id);
}

void ChangeHub::Run() {
  while (true) {
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](ChangeHub* hub) ABSL_NO_THREAD_SAFETY_ANALYSIS { return hub->changed_ || hub->stopping_; }, this));
      if (stopping_) return;
      changed_ = false;
    }
    const absl::MutexLock lock(&subscribers_mutex_);
    for (const auto& [id, wake] : subscribers_) wake();
  }
}

}  // namespace mp
