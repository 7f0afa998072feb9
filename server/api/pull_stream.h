// A server stream that asks its source for the next message whenever the last one is on its way and the hub says that
// something changed: at most one message is held for a slow reader, and nothing is queued.
//
// Deletes itself in OnDone, as gRPC's reactors do; make it with StartPullStream. Thread-safety: gRPC's and the hub's
// threads.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/api/change_hub.h"
#include "server/api/status_details.h"

namespace mp {

enum class Pulled { kMessage, kNothingYet, kEnd };

// What a stream sends. Next is called by one thread at a time; it fills `response` when it returns kMessage.
template <typename Response>
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  virtual absl::StatusOr<Pulled> Next(Response* response) = 0;
};

template <typename Response>
class PullStream : public grpc::ServerWriteReactor<Response> {
 public:
  PullStream(ChangeHub* hub, std::unique_ptr<StreamSource<Response>> source) : hub_(hub), source_(std::move(source)) {}

  void Begin() {
    subscription_ = hub_->Subscribe([this] { Pump(); });
    Pump();
  }

  void OnWriteDone(bool ok) override {
    {
      const absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok || cancelled_) return FinishLocked(grpc::Status::CANCELLED);
    }
    Pump();
  }

  void OnCancel() override {
    const absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (!writing_) FinishLocked(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    hub_->Unsubscribe(subscription_);
    const std::unique_ptr<PullStream> self(this);
  }

 private:
  void Pump() {
    const absl::MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    response_.Clear();
    const absl::StatusOr<Pulled> pulled = source_->Next(&response_);
    if (!pulled.ok()) return FinishLocked(ToGrpc(pulled.status()));
    switch (*pulled) {
      case Pulled::kMessage:
        writing_ = true;
        this->StartWrite(&response_);
        return;
      case Pulled::kEnd:
        return FinishLocked(grpc::Status::OK);
      case Pulled::kNothingYet:
        return;
    }
  }

  void FinishLocked(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    this->Finish(status);
  }

  ChangeHub* const hub_;
  int64_t subscription_ = 0;
  absl::Mutex mutex_;
  const std::unique_ptr<StreamSource<Response>> source_ ABSL_GUARDED_BY(mutex_);
  Response response_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

template <typename Response>
grpc::ServerWriteReactor<Response>* StartPullStream(ChangeHub* hub, std::unique_ptr<StreamSource<Response>> source) {
  auto stream = std::make_unique<PullStream<Response>>(hub, std::move(source));
  stream->Begin();
  return stream.release();  // it deletes itself in OnDone
}

// For unary methods.
template <typename Response>
grpc::ServerUnaryReactor* FinishUnary(grpc::CallbackServerContext* context, Response* response,
                                      absl::StatusOr<Response> result) {
  auto* reactor = context->DefaultReactor();
  const grpc::Status status = ToGrpc(result.status());
  if (result.ok()) *response = *std::move(result);
  reactor->Finish(status);
  return reactor;
}

}  // namespace mp
