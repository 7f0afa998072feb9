#include "client/connection.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace mp::client {

Connection::Connection(ServerAddress server, absl::Duration timeout) : server_(std::move(server)), timeout_(timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  const auto channel = grpc::CreateCustomChannel(server_.address, grpc::InsecureChannelCredentials(), arguments);
  jobs_ = v1::JobService::NewStub(channel);
  nodes_ = v1::NodeService::NewStub(channel);
  metrics_ = v1::MetricsService::NewStub(channel);
  logs_ = v1::LogService::NewStub(channel);
}

absl::Status Connection::Call(const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  // A controller that has just been restarted is worth a moment; one that is not there is said soon.
  constexpr absl::Duration kRetryFor = absl::Seconds(3);
  const absl::Time start = absl::Now();
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(start + timeout_));
    const grpc::Status status = call(&context);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE ||
        absl::Now() + absl::Milliseconds(200) > start + std::min(kRetryFor, timeout_))
      return Explain(status);
    absl::SleepFor(absl::Milliseconds(200));
  }
}

absl::Status Connection::Explain(const grpc::Status& status) const {
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::UnavailableError(absl::StrCat("cannot reach the controller at ", server_.address, " (from ",
                                               server_.source, "): ", status.error_message(),
                                               "; is it running? `mpctl dev up` starts one on this machine"));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(
        absl::StrCat("the controller at ", server_.address, " did not answer within ", absl::FormatDuration(timeout_)));
  }
  return FromGrpc(status);
}

}  // namespace mp::client
