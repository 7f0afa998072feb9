// What Prometheus sees: a bounded set of series. No tensor or step is a label; the full series are in MetricStore.
//
//   mp_job_*{job}              newest frame of rank 0, or the worst of all ranks (memory, data wait)
//   mp_fp8_amax{job,kind}      histogram of amaxes, buckets at powers of two
//   mp_fp8_*_share{job,kind}   worst tensor of the newest frames
//   mp_jobs{state}, mp_nodes{state}, mp_queue_depth, mp_build_info
//
// Series of a job disappear `keep` after its end. Thread-safety: any thread.
#pragma once

#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "mp/v1/job.pb.h"
#include "mp/v1/node_service.pb.h"
#include "mp/v1/trainer.pb.h"

namespace mp {

class Exposition {
 public:
  explicit Exposition(absl::Duration keep = absl::Minutes(10));
  ~Exposition();

  void Record(const std::string& job, int rank, const std::vector<v1::TrainerEvent>& events);
  // Gauges over all jobs and nodes; also starts and ends the time after which a final job's series go.
  void Update(const std::vector<v1::Job>& jobs, const std::vector<v1::Node>& nodes, absl::Time now);

  std::shared_ptr<prometheus::Registry> registry() { return registry_; }

 private:
  struct JobSeries;
  JobSeries& SeriesOf(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration keep_;
  const std::shared_ptr<prometheus::Registry> registry_;
  absl::Mutex mutex_;
  std::map<std::string, std::unique_ptr<JobSeries>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Time> gone_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace mp
