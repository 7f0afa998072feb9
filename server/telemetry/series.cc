#include "server/telemetry/series.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace mp {
namespace {

constexpr size_t kDefaultPoints = 100000;

}  // namespace

bool MatchesPattern(std::string_view name, std::string_view pattern) {
  size_t n = 0;
  size_t p = 0;
  size_t star = std::string_view::npos;
  size_t resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

SeriesBuilder::SeriesBuilder(const v1::QueryMetricsRequest& request) : request_(request) {}

bool SeriesBuilder::Wanted(const std::string& name, bool is_scalar) const {
  if (request_.names().empty()) return is_scalar;
  return std::any_of(request_.names().begin(), request_.names().end(),
                     [&](const std::string& pattern) { return MatchesPattern(name, pattern); });
}

void SeriesBuilder::Add(const std::string& name, int rank, int64_t step, double value) {
  points_[{name, rank}][step] = value;
}

void SeriesBuilder::AddFrame(int rank, const v1::Frame& frame) {
  for (const auto& [name, value] : frame.scalars()) {
    if (Wanted(name, true)) Add(name, rank, frame.step(), value);
  }
  if (request_.names().empty()) return;
  for (const v1::TensorStat& tensor : frame.tensors()) {
    const std::string prefix = absl::StrCat(tensor.layer(), "/", v1::TensorStat::Kind_Name(tensor.kind()), "/");
    const std::pair<const char*, double> statistics[] = {{"amax", tensor.amax()},
                                                         {"scale", tensor.scale()},
                                                         {"underflow_share", tensor.underflow_share()},
                                                         {"overflow_share", tensor.overflow_share()}};
    for (const auto& [statistic, value] : statistics) {
      const std::string name = absl::StrCat(prefix, statistic);
      if (Wanted(name, false)) Add(name, rank, frame.step(), value);
    }
  }
}

void SeriesBuilder::AddEvaluation(int rank, const v1::Evaluation& evaluation) {
  for (const auto& [metric, value] : evaluation.metrics()) {
    const std::string name = absl::StrCat("eval_", metric);
    if (Wanted(name, true)) Add(name, rank, evaluation.step(), value);
  }
}

v1::QueryMetricsResponse SeriesBuilder::Build() const {
  v1::QueryMetricsResponse response;
  const size_t most = request_.max_points() > 0 ? static_cast<size_t>(request_.max_points()) : kDefaultPoints;
  for (const auto& [key, points] : points_) {
    v1::Series& series = *response.add_series();
    series.set_name(key.first);
    series.set_rank(key.second);
    // Every stride-th point counted from the last, so that the last one is always there.
    const size_t stride = (points.size() + most - 1) / most;
    size_t index = 0;
    for (const auto& [step, value] : points) {
      if ((points.size() - 1 - index++) % stride != 0) continue;
      series.add_steps(step);
      series.add_values(value);
    }
  }
  return response;
}

}  // namespace mp
