#include "worker/trainer/device/cuda/progress_watch.h"

#include <exception>
#include <utility>

namespace mp::trainer {
namespace {

// How often a device is asked. Finished work waits so long for its deletion, nothing else.
constexpr std::chrono::milliseconds kInterval{50};

}  // namespace

ProgressWatch::ProgressWatch(std::chrono::milliseconds timeout, std::function<void(const std::string&)> on_lost)
    : timeout_(timeout), on_lost_(std::move(on_lost)), thread_([this] { Run(); }) {}

ProgressWatch::~ProgressWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ProgressWatch::Add(std::string what, std::function<bool()> is_done) {
  {
    const std::lock_guard lock(mutex_);
    works_.push_back({std::move(what), std::move(is_done)});
  }
  changed_.notify_all();
}

void ProgressWatch::Run() {
  auto progress = std::chrono::steady_clock::now();
  while (true) {
    std::unique_lock lock(mutex_);
    if (works_.empty()) {
      changed_.wait(lock, [this] { return stopping_ || !works_.empty(); });
      progress = std::chrono::steady_clock::now();
    } else {
      changed_.wait_for(lock, kInterval, [this] { return stopping_; });
    }
    if (stopping_) return;
    Work oldest = std::move(works_.front());
    works_.pop_front();
    lock.unlock();
    std::string problem;
    try {
      while (oldest.is_done()) {
        progress = std::chrono::steady_clock::now();
        lock.lock();
        if (works_.empty()) {
          oldest = {};
          lock.unlock();
          break;
        }
        oldest = std::move(works_.front());
        works_.pop_front();
        lock.unlock();
      }
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (problem.empty() && oldest.is_done == nullptr) continue;
    if (problem.empty() && std::chrono::steady_clock::now() - progress >= timeout_) {
      problem = "no progress for " +
                std::to_string(std::chrono::duration_cast<std::chrono::seconds>(timeout_).count()) + " s";
    }
    if (!problem.empty()) {
      on_lost_("peer lost in " + oldest.what + ": " + problem);
      return;
    }
    lock.lock();
    works_.push_front(std::move(oldest));
  }
}

}  // namespace mp::trainer
