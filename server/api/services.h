// The gRPC services: they check, call, and map the error; no logic. Each is not the owner of what it is given, which
// must outlive the server. Errors and semantics are in proto/mp/v1.
#pragma once

#include <memory>

#include "mp/v1/job_service.grpc.pb.h"
#include "mp/v1/log_service.grpc.pb.h"
#include "mp/v1/metrics_service.grpc.pb.h"
#include "mp/v1/node_service.grpc.pb.h"
#include "mp/v1/worker_service.grpc.pb.h"
#include "server/api/change_hub.h"
#include "server/fleet/coordinator.h"
#include "server/telemetry/exposition.h"
#include "server/telemetry/log_store.h"
#include "server/telemetry/metric_store.h"

namespace mp {

struct ServiceParts {
  Coordinator* coordinator = nullptr;
  MetricStore* metrics = nullptr;
  LogStore* logs = nullptr;
  Exposition* exposition = nullptr;
  ChangeHub* hub = nullptr;
};

std::unique_ptr<grpc::Service> MakeJobService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeNodeService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeMetricsService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeLogService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeWorkerService(const ServiceParts& parts);

}  // namespace mp
