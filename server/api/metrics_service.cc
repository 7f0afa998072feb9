#include <deque>

#include "server/api/pull_stream.h"
#include "server/api/services.h"

namespace mp {
namespace {

// Frames after a cursor. A reader that falls far behind gets the newest ones and a count of those left out.
class FrameSource : public StreamSource<v1::StreamMetricsResponse> {
 public:
  FrameSource(const ServiceParts& parts, const v1::StreamMetricsRequest& request)
      : parts_(parts), request_(request), after_(request.after_sequence()) {}

  absl::StatusOr<Pulled> Next(v1::StreamMetricsResponse* response) override {
    constexpr int kBatch = 64;
    const absl::StatusOr<JobIdentity> job = parts_.coordinator->FindJob(request_.job());
    if (!job.ok()) return job.status();
    if (after_ < 0) {
      const absl::StatusOr<int64_t> last = parts_.metrics->LastSequence(job->uid);
      if (!last.ok()) return last.status();
      after_ = *last;
    }
    if (ready_.empty()) {
      const absl::StatusOr<int64_t> newest = parts_.metrics->LastSequence(job->uid);
      if (!newest.ok()) return newest.status();
      if (live_ && *newest - after_ > kMaxBehind) {
        dropped_ += *newest - kMaxBehind / 2 - after_;
        after_ = *newest - kMaxBehind / 2;
      }
      absl::StatusOr<std::vector<v1::StoredFrame>> frames =
          parts_.metrics->FramesAfter(job->uid, after_, request_.rank(), kBatch);
      if (!frames.ok()) return frames.status();
      if (frames->empty()) {
        live_ = true;  // what was stored is sent; from here on it is the reader's pace that counts
        return job->is_final ? Pulled::kEnd : Pulled::kNothingYet;
      }
      ready_.assign(frames->begin(), frames->end());
    }
    *response->mutable_frame() = std::move(ready_.front());
    ready_.pop_front();
    response->mutable_frame()->set_job(job->name);
    if (request_.scalars_only()) response->mutable_frame()->mutable_frame()->clear_tensors();
    after_ = response->frame().sequence();
    response->set_dropped(dropped_);
    dropped_ = 0;
    return Pulled::kMessage;
  }

 private:
  static constexpr int64_t kMaxBehind = 10000;  // frames

  const ServiceParts parts_;
  const v1::StreamMetricsRequest request_;
  int64_t after_;
  bool live_ = false;
  int64_t dropped_ = 0;
  std::deque<v1::StoredFrame> ready_;
};

class MetricsServiceImpl : public v1::MetricsService::CallbackService {
 public:
  explicit MetricsServiceImpl(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* QueryMetrics(grpc::CallbackServerContext* context, const v1::QueryMetricsRequest* request,
                                         v1::QueryMetricsResponse* response) override {
    return FinishUnary(context, response, Query(*request));
  }

  grpc::ServerWriteReactor<v1::StreamMetricsResponse>* StreamMetrics(grpc::CallbackServerContext* /*context*/,
                                                                     const v1::StreamMetricsRequest* request) override {
    return StartPullStream<v1::StreamMetricsResponse>(parts_.hub, std::make_unique<FrameSource>(parts_, *request));
  }

 private:
  absl::StatusOr<v1::QueryMetricsResponse> Query(const v1::QueryMetricsRequest& request) const {
    const absl::StatusOr<JobIdentity> job = parts_.coordinator->FindJob(request.job());
    if (!job.ok()) return job.status();
    if (request.rank() < -1 || request.rank() >= job->world_size) {
      return WithReason(absl::InvalidArgumentError("rank must be -1 (all) or one of the job's ranks, 0 to " +
                                                   std::to_string(job->world_size - 1)),
                        "INVALID_RANK");
    }
    return parts_.metrics->Query(job->uid, request);
  }

  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMetricsService(const ServiceParts& parts) {
  return std::make_unique<MetricsServiceImpl>(parts);
}

}  // namespace mp
