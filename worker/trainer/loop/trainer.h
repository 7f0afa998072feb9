// One rank's training run: from a job and a process group to the last checkpoint.
//
//   Trainer trainer(job, attempt, resume_from, device, collectives, reporter, &whereabouts);
//   trainer.Run();
//
// Throws TrainerError with the cause on every failure. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/trainer/config/job.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/loop/whereabouts.h"
#include "worker/trainer/report/reporter.h"
#include "worker/trainer/sharding/collectives.h"

namespace mp::trainer {

class Trainer {
 public:
  // `resume_from`: none | latest | path of one checkpoint. `device`, `collectives`, `reporter` and `whereabouts` are
  // not owned and must outlive this; the last is kept up to date from here on.
  Trainer(const JobConfig& job, int attempt, std::string resume_from, Device* device, Collectives* collectives,
          Reporter* reporter, Whereabouts* whereabouts);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void Run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mp::trainer
