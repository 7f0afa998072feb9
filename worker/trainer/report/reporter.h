// The line protocol of proto/mp/v1/trainer.proto: events out, commands in.
//
// Thread-safety: all methods may be called from any thread; lines are written whole.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/config/error.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/precision/fp8/context.h"

namespace mp::trainer {

class Reporter {
 public:
  // Events of rank `rank` go to `report_fd`, commands are read from `command_fd` (-1: none) on a thread. End of file on
  // `command_fd` calls `on_orphaned` once.
  Reporter(int rank, int report_fd, int command_fd, std::function<void()> on_orphaned);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  void Started(int world_size, int64_t parameters);
  void PrecisionPlan(const std::vector<LinearPlan>& plan);
  void Frame(int64_t step, const std::map<std::string, double>& scalars,
             const std::vector<fp8::TensorStatistics>& tensors);
  void Evaluation(int64_t step, const std::map<std::string, double>& metrics);
  void CheckpointSaved(int64_t step, const std::string& path, int64_t bytes, double seconds);
  void CheckpointDamaged(const std::string& path, const std::string& reason);
  void Resumed(int64_t step, const std::string& path);
  void Finished(int64_t step, const std::map<std::string, double>& metrics);
  void Failed(EndCause cause, const std::string& message, int64_t step);

  // Asks the controller whether the checkpoint may become visible and waits for the answer. True without a command
  // descriptor (a standalone trainer asks nobody). `reason` receives why not.
  bool RequestCheckpoint(int64_t step, const std::string& path, std::string* reason);

  // True once after a SaveCheckpoint command.
  bool TakeSaveCommand();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mp::trainer
