// The worker's stream to the controller: dials, registers, reconnects.
//
// Two threads: one connects and reads, one writes. Thread-safety: any thread may Send; handlers run on the reading
// thread.
#pragma once

#include <grpcpp/channel.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "mp/v1/worker_service.grpc.pb.h"

namespace mp::agent {

// A channel that is back within a second of the controller's return.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& controller);

class Session {
 public:
  struct Handlers {
    std::function<v1::Register()> make_register;
    std::function<void(const v1::ControllerMessage&)> receive;
    // The stream ended; another one is tried. `fatal` where the controller refuses this worker (its name is taken).
    std::function<void(const grpc::Status& status)> disconnected;
  };

  Session(const std::shared_ptr<grpc::Channel>& channel, Handlers handlers);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Lost where there is no stream: whoever sends repeats what matters after the next registration.
  void Send(const v1::WorkerMessage& message);

 private:
  void Connect();
  void Write();
  void RunStream();

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  const Handlers handlers_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the present stream
  grpc::ClientReaderWriter<v1::WorkerMessage, v1::ControllerMessage>* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::WorkerMessage> queue_ ABSL_GUARDED_BY(mutex_);

  std::thread reader_;
  std::thread writer_;
};

}  // namespace mp::agent
