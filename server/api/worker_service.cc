#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/api/pull_stream.h"
#include "server/api/services.h"

namespace mp {
namespace {

// One worker's stream. The coordinator holds it as a WorkerSession for longer than gRPC holds the reactor, so the
// reactor hands its calls to this and takes itself away in OnDone.
class SessionReactor;

class Session : public WorkerSession {
 public:
  void Send(const v1::ControllerMessage& message) override;
  void Close(const absl::Status& status) override;

  void Attach(SessionReactor* reactor) {
    const absl::MutexLock lock(&mutex_);
    reactor_ = reactor;
  }
  void Detach() {
    const absl::MutexLock lock(&mutex_);
    reactor_ = nullptr;
  }
  void WriteDone(bool ok);

 private:
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  SessionReactor* reactor_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::deque<v1::ControllerMessage> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status close_status_ ABSL_GUARDED_BY(mutex_);
};

class SessionReactor : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage> {
 public:
  explicit SessionReactor(Coordinator* coordinator)
      : coordinator_(coordinator), session_(std::make_shared<Session>()) {}

  void Begin() {
    session_->Attach(this);
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      coordinator_->Disconnected(session_);
      return session_->Close(absl::OkStatus());
    }
    if (!registered_) {
      const absl::Status status = message_.has_register_()
                                      ? coordinator_->Register(session_, message_.register_())
                                      : absl::InvalidArgumentError("the first message must be Register");
      if (!status.ok()) return session_->Close(status);
      registered_ = true;
    } else {
      coordinator_->Receive(session_, message_);
    }
    StartRead(&message_);
  }

  void OnWriteDone(bool ok) override { session_->WriteDone(ok); }
  void OnCancel() override { session_->Close(absl::CancelledError("the stream was cancelled")); }

  void OnDone() override {
    coordinator_->Disconnected(session_);
    session_->Detach();
    const std::unique_ptr<SessionReactor> self(this);
  }

 private:
  Coordinator* const coordinator_;
  const std::shared_ptr<Session> session_;
  v1::WorkerMessage message_;
  bool registered_ = false;
};

void Session::Send(const v1::ControllerMessage& message) {
  const absl::MutexLock lock(&mutex_);
  if (reactor_ == nullptr || closing_) return;
  queue_.push_back(message);
  if (!writing_) Pump();
}

void Session::Close(const absl::Status& status) {
  const absl::MutexLock lock(&mutex_);
  if (reactor_ == nullptr || closing_) return;
  closing_ = true;
  close_status_ = ToGrpc(status);
  if (!writing_) Pump();
}

void Session::WriteDone(bool ok) {
  const absl::MutexLock lock(&mutex_);
  writing_ = false;
  queue_.pop_front();
  if (!ok) {
    queue_.clear();
    closing_ = true;
  }
  Pump();
}

void Session::Pump() {
  if (reactor_ == nullptr || finished_) return;
  if (!queue_.empty()) {
    writing_ = true;
    reactor_->StartWrite(&queue_.front());
  } else if (closing_) {
    finished_ = true;
    reactor_->Finish(close_status_);
  }
}

// A stream of requests each of which is stored and then acknowledged.
template <typename Request, typename Response>
class ShipReactor : public grpc::ServerBidiReactor<Request, Response> {
 public:
  using Handler = std::function<absl::StatusOr<Response>(const Request&)>;
  explicit ShipReactor(Handler handler) : handler_(std::move(handler)) {}

  void Begin() { this->StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    absl::StatusOr<Response> response = handler_(request_);
    if (!response.ok()) return this->Finish(ToGrpc(response.status()));
    response_ = *std::move(response);
    this->StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::CANCELLED);
    this->StartRead(&request_);
  }

  void OnDone() override { const std::unique_ptr<ShipReactor> self(this); }

 private:
  const Handler handler_;
  Request request_;
  Response response_;
};

class WorkerServiceImpl : public v1::WorkerService::CallbackService {
 public:
  explicit WorkerServiceImpl(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* Session(
      grpc::CallbackServerContext* /*context*/) override {
    return Start(std::make_unique<SessionReactor>(parts_.coordinator));
  }
  grpc::ServerBidiReactor<v1::ShipLogsRequest, v1::ShipLogsResponse>* ShipLogs(
      grpc::CallbackServerContext* /*context*/) override {
    return Start(std::make_unique<ShipReactor<v1::ShipLogsRequest, v1::ShipLogsResponse>>(
        [this](const v1::ShipLogsRequest& request) { return StoreLogs(request); }));
  }
  grpc::ServerBidiReactor<v1::ShipEventsRequest, v1::ShipEventsResponse>* ShipEvents(
      grpc::CallbackServerContext* /*context*/) override {
    return Start(std::make_unique<ShipReactor<v1::ShipEventsRequest, v1::ShipEventsResponse>>(
        [this](const v1::ShipEventsRequest& request) { return StoreEvents(request); }));
  }

 private:
  template <typename Reactor>
  static Reactor* Start(std::unique_ptr<Reactor> reactor) {
    reactor->Begin();
    return reactor.release();  // it deletes itself in OnDone
  }

  absl::StatusOr<v1::ShipLogsResponse> StoreLogs(const v1::ShipLogsRequest& request) {
    v1::ShipLogsResponse response;
    *response.mutable_id() = request.id();
    response.set_rank(request.rank());
    if (!parts_.coordinator->Accepts(request.id(), request.rank())) {
      response.set_refused(true);
      return response;
    }
    const absl::StatusOr<int64_t> stored = parts_.logs->Append(request.id().job_uid(), request.id().attempt(),
                                                               request.rank(), request.offset(), request.data());
    if (!stored.ok()) return stored.status();
    response.set_stored(*stored);
    parts_.hub->Notify();
    return response;
  }

  absl::StatusOr<v1::ShipEventsResponse> StoreEvents(const v1::ShipEventsRequest& request) {
    v1::ShipEventsResponse response;
    *response.mutable_id() = request.id();
    response.set_rank(request.rank());
    const v1::AttemptId& id = request.id();
    if (!parts_.coordinator->Accepts(id, request.rank())) {
      response.set_refused(true);
      return response;
    }
    if (request.first_sequence() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("first_sequence ", request.first_sequence(), ": events are numbered from 1"));
    }
    const absl::StatusOr<int64_t> position = parts_.metrics->Position(id.job_uid(), id.attempt(), request.rank());
    if (!position.ok()) return position.status();
    response.set_stored(*position);
    const int64_t known = *position + 1 - request.first_sequence();
    if (known < 0 || known >= request.events_size()) return response;  // a gap, or nothing new
    const std::vector<v1::TrainerEvent> events(request.events().begin() + known, request.events().end());
    // The job's own record first: should the process end in between, the events come again and are recorded twice
    // rather than never.
    if (absl::Status status = parts_.coordinator->RankEvents(id, request.rank(), events); !status.ok()) return status;
    if (absl::Status status = parts_.metrics->Append(id.job_uid(), id.attempt(), request.rank(), *position + 1, events);
        !status.ok())
      return status;
    parts_.exposition->Record(id.job(), request.rank(), events);
    response.set_stored(*position + static_cast<int64_t>(events.size()));
    parts_.hub->Notify();
    return response;
  }

  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(const ServiceParts& parts) {
  return std::make_unique<WorkerServiceImpl>(parts);
}

}  // namespace mp
