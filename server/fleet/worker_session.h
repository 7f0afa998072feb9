// The controller's end of one worker's stream.
#pragma once

#include "absl/status/status.h"
#include "mp/v1/worker_service.pb.h"

namespace mp {

// Thread-safety: any thread; neither call blocks.
class WorkerSession {
 public:
  virtual ~WorkerSession() = default;
  // Queues the message; it is lost when the stream ends before.
  virtual void Send(const v1::ControllerMessage& message) = 0;
  // Ends the stream after what is queued.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace mp
