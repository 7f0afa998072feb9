#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "server/api/pull_stream.h"
#include "server/api/services.h"

namespace mp {
namespace {

// The output of one or all ranks of an attempt, rank after rank in turns, and of later attempts when following.
class LogSource : public StreamSource<v1::ReadLogsResponse> {
 public:
  LogSource(const ServiceParts& parts, const v1::ReadLogsRequest& request)
      : parts_(parts), request_(request), attempt_(request.attempt()) {}

  absl::StatusOr<Pulled> Next(v1::ReadLogsResponse* response) override {
    constexpr int64_t kChunk = 65536;
    const absl::StatusOr<JobIdentity> job = parts_.coordinator->FindJob(request_.job());
    if (!job.ok()) return job.status();
    if (absl::Status status = Check(*job); !status.ok()) return status;
    if (attempt_ == 0) attempt_ = job->attempt;
    if (attempt_ == 0) return job->is_final || !request_.follow() ? Pulled::kEnd : Pulled::kNothingYet;
    const int first = request_.rank() < 0 ? 0 : request_.rank();
    const int last = request_.rank() < 0 ? job->world_size - 1 : request_.rank();
    for (int i = 0; i <= last - first; ++i) {
      const int rank = first + (turn_ + i) % (last - first + 1);
      const absl::StatusOr<int64_t> offset = Offset(job->uid, rank);
      if (!offset.ok()) return offset.status();
      absl::StatusOr<std::string> data = parts_.logs->Read(job->uid, attempt_, rank, *offset, kChunk);
      if (!data.ok()) return data.status();
      if (data->empty()) continue;
      response->set_attempt(attempt_);
      response->set_rank(rank);
      response->set_offset(*offset);
      offsets_[rank] += static_cast<int64_t>(data->size());
      response->set_data(*std::move(data));
      turn_ = rank - first + 1;
      return Pulled::kMessage;
    }
    if (!request_.follow()) return Pulled::kEnd;
    if (request_.attempt() == 0 && job->attempt > attempt_) {
      // An attempt's output is complete before the next one starts.
      ++attempt_;
      offsets_.clear();
      tail_ = false;
      return Next(response);
    }
    const bool over = job->is_final || job->attempt > attempt_;
    return over ? Pulled::kEnd : Pulled::kNothingYet;
  }

 private:
  absl::Status Check(const JobIdentity& job) const {
    if (request_.rank() < -1 || request_.rank() >= job.world_size) {
      return WithReason(absl::NotFoundError(absl::StrCat("job ", job.name, " has ranks 0 to ", job.world_size - 1,
                                                         ", no rank ", request_.rank())),
                        "RANK_NOT_FOUND");
    }
    if (request_.attempt() < 0 || request_.attempt() > job.attempt) {
      return WithReason(absl::NotFoundError(absl::StrCat("job ", job.name, " has had ", job.attempt,
                                                         " attempt(s), no attempt ", request_.attempt())),
                        "ATTEMPT_NOT_FOUND");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Offset(const std::string& uid, int rank) {
    const auto it = offsets_.find(rank);
    if (it != offsets_.end()) return it->second;
    int64_t offset = std::max<int64_t>(0, request_.offset());
    if (tail_ && request_.tail_lines() > 0) {
      const absl::StatusOr<int64_t> tail = parts_.logs->TailOffset(uid, attempt_, rank, request_.tail_lines());
      if (!tail.ok()) return tail.status();
      offset = *tail;
    }
    offsets_[rank] = offset;
    return offset;
  }

  const ServiceParts parts_;
  const v1::ReadLogsRequest request_;
  int attempt_;
  bool tail_ = true;
  int turn_ = 0;
  std::map<int, int64_t> offsets_;
};

class LogServiceImpl : public v1::LogService::CallbackService {
 public:
  explicit LogServiceImpl(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerWriteReactor<v1::ReadLogsResponse>* ReadLogs(grpc::CallbackServerContext* /*context*/,
                                                           const v1::ReadLogsRequest* request) override {
    return StartPullStream<v1::ReadLogsResponse>(parts_.hub, std::make_unique<LogSource>(parts_, *request));
  }

 private:
  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeLogService(const ServiceParts& parts) {
  return std::make_unique<LogServiceImpl>(parts);
}

}  // namespace mp
