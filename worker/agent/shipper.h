// Sends what a source has, one request after another, each acknowledged before the next, on a stream that is opened
// anew when it breaks. Nothing is lost or repeated out of order: what was not acknowledged is asked for again.
//
// One thread. Thread-safety: Wake and the destructor from any thread; the callbacks run on the shipper's thread.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace mp::agent {

template <typename Request, typename Response>
class Shipper {
 public:
  using Stream = grpc::ClientReaderWriter<Request, Response>;
  struct Callbacks {
    std::function<std::unique_ptr<Stream>(grpc::ClientContext*)> open;
    std::function<std::optional<Request>()> next;  // none: nothing to send now
    std::function<void(const Response&)> acknowledged;
  };

  explicit Shipper(Callbacks callbacks) : callbacks_(std::move(callbacks)), thread_([this] { Run(); }) {}
  ~Shipper() {
    {
      const absl::MutexLock lock(&mutex_);
      stopping_ = true;
      if (context_ != nullptr) context_->TryCancel();
    }
    thread_.join();
  }
  Shipper(const Shipper&) = delete;
  Shipper& operator=(const Shipper&) = delete;

  // There may be something to send.
  void Wake() {
    const absl::MutexLock lock(&mutex_);
    awake_ = true;
  }

 private:
  void Run() {
    while (!Stopping()) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      {
        const absl::MutexLock lock(&mutex_);
        context_ = &context;
        if (stopping_) context.TryCancel();
      }
      const std::unique_ptr<Stream> stream = callbacks_.open(&context);
      ShipOn(stream.get());
      {
        const absl::MutexLock lock(&mutex_);
        context_ = nullptr;
      }
      context.TryCancel();
      stream->Finish();
      const absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), absl::Milliseconds(200));
    }
  }

  // Until the stream breaks or the end comes.
  void ShipOn(Stream* stream) {
    while (true) {
      std::optional<Request> request = callbacks_.next();
      if (!request) {
        const absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](Shipper* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->awake_ || self->stopping_; }, this));
        if (stopping_) return;
        awake_ = false;
        continue;
      }
      Response response;
      if (!stream->Write(*request) || !stream->Read(&response)) return;
      callbacks_.acknowledged(response);
    }
  }

  bool Stopping() {
    const absl::MutexLock lock(&mutex_);
    return stopping_;
  }

  const Callbacks callbacks_;
  absl::Mutex mutex_;
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace mp::agent
