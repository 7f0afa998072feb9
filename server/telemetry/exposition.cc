#include "server/telemetry/exposition.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace mp {
namespace {

using Labels = prometheus::Labels;

struct ScalarGauge {
  const char* scalar;  // in a frame
  const char* metric;
  const char* help;
  bool worst_of_ranks;  // the largest over ranks; else rank 0's
};

constexpr ScalarGauge kScalars[] = {
    {"loss", "mp_job_loss", "Training loss of the newest frame, mean nats per token over all ranks", false},
    {"learning_rate", "mp_job_learning_rate", "Learning rate of the newest frame", false},
    {"grad_norm", "mp_job_grad_norm", "Global gradient norm before clipping", false},
    {"loss_scale", "mp_job_loss_scale", "Loss scale; 1 without loss scaling", false},
    {"skipped_steps", "mp_job_skipped_steps", "Steps skipped by loss scaling so far", false},
    {"tokens", "mp_job_tokens", "Tokens trained on so far, all ranks", false},
    {"tokens_per_second", "mp_job_tokens_per_second", "Throughput of all ranks since the frame before", false},
    {"step_seconds", "mp_job_step_seconds", "Mean step time since the frame before, slowest rank", true},
    {"data_wait_seconds", "mp_job_data_wait_seconds", "Mean wait for data per step, worst rank", true},
    {"memory_bytes", "mp_job_memory_bytes", "Memory of a rank, worst rank", true},
    {"memory_peak_bytes", "mp_job_memory_peak_bytes", "Peak memory of a rank, worst rank", true},
};

std::vector<double> PowersOfTwo(int first, int last, int stride) {
  std::vector<double> bounds;
  for (int exponent = first; exponent <= last; exponent += stride) bounds.push_back(std::ldexp(1.0, exponent));
  return bounds;
}

prometheus::Family<prometheus::Gauge>& GaugeFamily(prometheus::Registry& registry, const std::string& name,
                                                   const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

prometheus::Family<prometheus::Counter>& NonFiniteFamily(prometheus::Registry& registry) {
  return prometheus::BuildCounter()
      .Name("mp_job_nonfinite_total")
      .Help("Values reported that were not finite: losses, norms, amaxes")
      .Register(registry);
}

prometheus::Family<prometheus::Histogram>& AmaxFamily(prometheus::Registry& registry) {
  return prometheus::BuildHistogram()
      .Name("mp_fp8_amax")
      .Help("Largest absolute value of FP8 tensors, one observation a tensor and frame")
      .Register(registry);
}

}  // namespace

// The series of one job; removed from the registry with it.
struct Exposition::JobSeries {
  JobSeries(prometheus::Registry& registry_in, const std::string& job_in) : registry(registry_in), job(job_in) {
    for (const ScalarGauge& scalar : kScalars)
      gauges[scalar.scalar] = AddGauge(scalar.metric, scalar.help, {{"job", job}});
    step = AddGauge("mp_job_step", "Newest step reported by rank 0", {{"job", job}});
    eval_loss = AddGauge("mp_job_eval_loss", "Newest evaluation loss, mean nats per token", {{"job", job}});
    checkpoint_step =
        AddGauge("mp_job_checkpoint_step", "Step of the newest checkpoint; 0 before the first", {{"job", job}});
    checkpoint_time = AddGauge("mp_job_checkpoint_timestamp_seconds",
                               "Unix time of the newest checkpoint; 0 before the first", {{"job", job}});
    auto& family = NonFiniteFamily(registry);
    prometheus::Counter* counter = &family.Add({{"job", job}});
    nonfinite = counter;
    removers.push_back([&family, counter] { family.Remove(counter); });
  }
  JobSeries(const JobSeries&) = delete;
  JobSeries& operator=(const JobSeries&) = delete;
  ~JobSeries() {
    for (const auto& remove : removers) remove();
  }

  prometheus::Gauge* AddGauge(const std::string& name, const std::string& help, const Labels& labels) {
    auto& family = GaugeFamily(registry, name, help);
    prometheus::Gauge* gauge = &family.Add(labels);
    removers.push_back([&family, gauge] { family.Remove(gauge); });
    return gauge;
  }

  struct KindSeries {
    prometheus::Histogram* amax = nullptr;
    prometheus::Gauge* underflow = nullptr;
    prometheus::Gauge* overflow = nullptr;
  };

  KindSeries& Kind(const std::string& kind) {
    KindSeries& series = kinds[kind];
    if (series.amax == nullptr) {
      const Labels labels = {{"job", job}, {"kind", kind}};
      auto& family = AmaxFamily(registry);
      prometheus::Histogram* histogram = &family.Add(labels, PowersOfTwo(-24, 16, 2));
      series.amax = histogram;
      removers.push_back([&family, histogram] { family.Remove(histogram); });
      series.underflow =
          AddGauge("mp_fp8_underflow_share",
                   "Share of elements that FP8 flushed to zero, worst tensor of the newest frame of a rank", labels);
      series.overflow =
          AddGauge("mp_fp8_overflow_share",
                   "Share of elements beyond FP8's range, worst tensor of the newest frame of a rank", labels);
    }
    return series;
  }

  void Count(double value) const {
    if (!std::isfinite(value)) nonfinite->Increment();
  }

  void RecordFrame(int rank, const v1::Frame& frame) {
    if (rank == 0) step->Set(static_cast<double>(frame.step()));
    for (const ScalarGauge& scalar : kScalars) {
      const auto it = frame.scalars().find(scalar.scalar);
      if (it == frame.scalars().end()) continue;
      if (scalar.worst_of_ranks) {
        auto& ranks = worst[scalar.scalar];
        ranks[rank] = it->second;
        double largest = it->second;
        for (const auto& [other, value] : ranks) largest = std::max(largest, value);
        gauges.at(scalar.scalar)->Set(largest);
      } else if (rank == 0) {
        gauges.at(scalar.scalar)->Set(it->second);
      }
    }
    if (rank == 0) {
      for (const auto& [name, value] : frame.scalars()) Count(value);
    }
    std::map<std::string, std::pair<double, double>> shares;
    for (const v1::TensorStat& tensor : frame.tensors()) {
      const std::string& kind = v1::TensorStat::Kind_Name(tensor.kind());
      Kind(kind).amax->Observe(tensor.amax());
      Count(tensor.amax());
      auto& share = shares[kind];
      share.first = std::max(share.first, tensor.underflow_share());
      share.second = std::max(share.second, tensor.overflow_share());
    }
    for (const auto& [kind, share] : shares) {
      Kind(kind).underflow->Set(share.first);
      Kind(kind).overflow->Set(share.second);
    }
  }

  prometheus::Registry& registry;
  const std::string job;
  std::map<std::string, prometheus::Gauge*> gauges;
  std::map<std::string, std::map<int, double>> worst;
  std::map<std::string, KindSeries> kinds;
  prometheus::Gauge* step = nullptr;
  prometheus::Gauge* eval_loss = nullptr;
  prometheus::Gauge* checkpoint_step = nullptr;
  prometheus::Gauge* checkpoint_time = nullptr;
  prometheus::Counter* nonfinite = nullptr;
  std::vector<std::function<void()>> removers;
};

Exposition::Exposition(absl::Duration keep) : keep_(keep), registry_(std::make_shared<prometheus::Registry>()) {
  GaugeFamily(*registry_, "mp_build_info", "Version of the controller").Add({{"version", MP_VERSION}}).Set(1);
  Update({}, {}, absl::UnixEpoch());
}

Exposition::~Exposition() = default;

Exposition::JobSeries& Exposition::SeriesOf(const std::string& job) {
  auto& series = jobs_[job];
  if (series == nullptr) series = std::make_unique<JobSeries>(*registry_, job);
  return *series;
}

void Exposition::Record(const std::string& job, int rank, const std::vector<v1::TrainerEvent>& events) {
  const absl::MutexLock lock(&mutex_);
  for (const v1::TrainerEvent& event : events) {
    if (event.has_frame()) SeriesOf(job).RecordFrame(rank, event.frame());
    if (event.has_evaluation()) {
      const auto loss = event.evaluation().metrics().find("loss");
      if (loss != event.evaluation().metrics().end()) SeriesOf(job).eval_loss->Set(loss->second);
    }
    if (event.has_checkpoint_saved()) {
      SeriesOf(job).checkpoint_step->Set(static_cast<double>(event.checkpoint_saved().step()));
      SeriesOf(job).checkpoint_time->Set(event.time());
    }
  }
}

void Exposition::Update(const std::vector<v1::Job>& jobs, const std::vector<v1::Node>& nodes, absl::Time now) {
  std::map<int, int> by_state;
  std::set<std::string> running;
  for (const v1::Job& job : jobs) {
    ++by_state[job.state()];
    const bool is_final =
        job.state() == v1::Job::SUCCEEDED || job.state() == v1::Job::FAILED || job.state() == v1::Job::CANCELLED;
    if (!is_final) running.insert(job.name());
  }
  auto& job_family = GaugeFamily(*registry_, "mp_jobs", "Jobs by state");
  for (int state = v1::Job::PENDING; state <= v1::Job::SUSPENDED; ++state) {
    job_family.Add({{"state", v1::Job::State_Name(state)}}).Set(by_state[state]);
  }
  GaugeFamily(*registry_, "mp_queue_depth", "Jobs that wait for devices").Add({}).Set(by_state[v1::Job::PENDING]);
  std::map<int, int> by_node_state;
  for (const v1::Node& node : nodes) ++by_node_state[node.state()];
  auto& node_family = GaugeFamily(*registry_, "mp_nodes", "Nodes by state");
  for (int state = v1::Node::READY; state <= v1::Node::LOST; ++state) {
    node_family.Add({{"state", v1::Node::State_Name(state)}}).Set(by_node_state[state]);
  }

  const absl::MutexLock lock(&mutex_);
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    if (running.contains(it->first)) {
      gone_at_.erase(it->first);
      ++it;
      continue;
    }
    const auto [gone, first] = gone_at_.try_emplace(it->first, now + keep_);
    if (now >= gone->second) {
      gone_at_.erase(gone);
      it = jobs_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace mp
