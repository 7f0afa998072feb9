// What our collectives on c10d's backends share: how a failure becomes "peer lost", and work in flight.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "worker/trainer/config/error.h"
#include "worker/trainer/sharding/collectives.h"

namespace mp::trainer {

// Runs a c10d call; whatever it throws means that the ranks can no longer work together.
template <typename F>
auto OrPeerLost(const char* operation, F&& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw TrainerError(EndCause::kPeerLost,
                       std::string("peer lost in ") + operation + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw TrainerError(EndCause::kPeerLost, std::string("peer lost in ") + operation + ": " + error.what());
  }
}

class WorkPending : public Collectives::Pending {
 public:
  // `keep`: tensors that must live until the work is done. `finish` runs once after it.
  WorkPending(const char* operation, c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> keep,
              std::function<void()> finish)
      : operation_(operation), work_(std::move(work)), keep_(std::move(keep)), finish_(std::move(finish)) {}

  void Wait() override {
    if (!work_) return;
    OrPeerLost(operation_, [&] { return work_->wait(); });
    work_.reset();
    if (finish_) finish_();
    keep_.clear();
  }

 private:
  const char* operation_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> keep_;
  std::function<void()> finish_;
};

}  // namespace mp::trainer
