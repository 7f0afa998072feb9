// A connection to the controller: stubs, deadlines, retries of what may be repeated.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/address.h"
#include "mp/v1/job_service.grpc.pb.h"
#include "mp/v1/log_service.grpc.pb.h"
#include "mp/v1/metrics_service.grpc.pb.h"
#include "mp/v1/node_service.grpc.pb.h"
#include "server/api/status_details.h"

namespace mp::client {

class Connection {
 public:
  Connection(ServerAddress server, absl::Duration timeout);

  v1::JobService::Stub& jobs() { return *jobs_; }
  v1::NodeService::Stub& nodes() { return *nodes_; }
  v1::MetricsService::Stub& metrics() { return *metrics_; }
  v1::LogService::Stub& logs() { return *logs_; }

  // Runs a unary call with the deadline; tried again while the controller is unavailable and the deadline allows. Only
  // for calls that may be repeated. UNAVAILABLE says where the address came from and what to do.
  absl::Status Call(const std::function<grpc::Status(grpc::ClientContext*)>& call);
  // A stream's end as a status, with the same words.
  absl::Status Explain(const grpc::Status& status) const;
  const ServerAddress& server() const { return server_; }

 private:
  const ServerAddress server_;
  const absl::Duration timeout_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::NodeService::Stub> nodes_;
  std::unique_ptr<v1::MetricsService::Stub> metrics_;
  std::unique_ptr<v1::LogService::Stub> logs_;
};

}  // namespace mp::client
