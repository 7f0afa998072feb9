#include "worker/agent/session.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/time/time.h"

namespace mp::agent {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& controller) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A controller's host that vanished without a word is noticed.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel(controller, grpc::InsecureChannelCredentials(), arguments);
}

Session::Session(const std::shared_ptr<grpc::Channel>& channel, Handlers handlers)
    : stub_(v1::WorkerService::NewStub(channel)),
      handlers_(std::move(handlers)),
      reader_([this] { Connect(); }),
      writer_([this] { Write(); }) {}

Session::~Session() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  reader_.join();
  writer_.join();
}

void Session::Send(const v1::WorkerMessage& message) {
  const absl::MutexLock lock(&mutex_);
  if (stream_ != nullptr) queue_.push_back(message);
}

void Session::Connect() {
  while (true) {
    RunStream();
    const absl::MutexLock lock(&mutex_);
    // Not at once again: a controller that refuses must not be flooded.
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), absl::Milliseconds(300));
    if (stopping_) return;
  }
}

void Session::RunStream() {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  {
    const absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    context_ = &context;
  }
  const auto stream = stub_->Session(&context);
  v1::WorkerMessage first;
  *first.mutable_register_() = handlers_.make_register();
  bool alive = stream->Write(first);
  if (alive) {
    const absl::MutexLock lock(&mutex_);
    queue_.clear();
    stream_ = stream.get();
  }
  v1::ControllerMessage message;
  while (alive && stream->Read(&message)) handlers_.receive(message);
  {
    const absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    queue_.clear();
    // The writer may be inside Write of this stream, which fails now that the stream is over. Not cancelled: that would
    // hide the status with which the controller has ended it.
    mutex_.Await(absl::Condition(
        +[](Session* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return !self->writing_; }, this));
    context_ = nullptr;
  }
  handlers_.disconnected(stream->Finish());
}

void Session::Write() {
  while (true) {
    v1::WorkerMessage message;
    grpc::ClientReaderWriter<v1::WorkerMessage, v1::ControllerMessage>* stream = nullptr;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](Session* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->stopping_ || !self->queue_.empty(); },
          this));
      if (stopping_) return;
      message = std::move(queue_.front());
      queue_.pop_front();
      stream = stream_;
      writing_ = stream != nullptr;
    }
    if (stream == nullptr) continue;
    stream->Write(message);
    const absl::MutexLock lock(&mutex_);
    writing_ = false;
  }
}

}  // namespace mp::agent
