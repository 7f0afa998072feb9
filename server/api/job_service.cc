#include <deque>

#include "server/api/pull_stream.h"
#include "server/api/services.h"
#include "server/job/state_machine.h"

namespace mp {
namespace {

// The job's events after a cursor; ends after the one that made its state final.
class EventSource : public StreamSource<v1::WatchJobResponse> {
 public:
  EventSource(Coordinator* coordinator, const v1::WatchJobRequest& request)
      : coordinator_(coordinator), job_(request.name()), after_(request.after_sequence()) {}

  absl::StatusOr<Pulled> Next(v1::WatchJobResponse* response) override {
    constexpr int kBatch = 100;
    if (ready_.empty()) {
      // Asked before the events are read: a final job gets no new ones.
      const absl::StatusOr<JobIdentity> job = coordinator_->FindJob(job_);
      if (!job.ok()) return job.status();
      absl::StatusOr<std::vector<v1::JobEvent>> events = coordinator_->Events(job_, after_, kBatch);
      if (!events.ok()) return events.status();
      if (events->empty()) return job->is_final ? Pulled::kEnd : Pulled::kNothingYet;
      ready_.assign(events->begin(), events->end());
    }
    *response->mutable_event() = std::move(ready_.front());
    ready_.pop_front();
    after_ = response->event().sequence();
    return Pulled::kMessage;
  }

 private:
  Coordinator* const coordinator_;
  const std::string job_;
  int64_t after_;
  std::deque<v1::JobEvent> ready_;
};

class JobServiceImpl : public v1::JobService::CallbackService {
 public:
  explicit JobServiceImpl(const ServiceParts& parts) : coordinator_(parts.coordinator), hub_(parts.hub) {}

  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext* context, const v1::CreateJobRequest* request,
                                      v1::Job* response) override {
    return FinishUnary(context, response, coordinator_->CreateJob(*request));
  }
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                   v1::Job* response) override {
    return FinishUnary(context, response, coordinator_->GetJob(request->name()));
  }
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    return FinishUnary(context, response, coordinator_->ListJobs(*request));
  }
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
                                      v1::Job* response) override {
    return FinishUnary(context, response, coordinator_->CancelJob(*request));
  }
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(grpc::CallbackServerContext* /*context*/,
                                                           const v1::WatchJobRequest* request) override {
    return StartPullStream<v1::WatchJobResponse>(hub_, std::make_unique<EventSource>(coordinator_, *request));
  }

 private:
  Coordinator* const coordinator_;
  ChangeHub* const hub_;
};

class NodeServiceImpl : public v1::NodeService::CallbackService {
 public:
  explicit NodeServiceImpl(const ServiceParts& parts) : coordinator_(parts.coordinator) {}

  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context, const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override {
    return FinishUnary(context, response, coordinator_->ListNodes(*request));
  }

 private:
  Coordinator* const coordinator_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(const ServiceParts& parts) {
  return std::make_unique<JobServiceImpl>(parts);
}
std::unique_ptr<grpc::Service> MakeNodeService(const ServiceParts& parts) {
  return std::make_unique<NodeServiceImpl>(parts);
}

}  // namespace mp
