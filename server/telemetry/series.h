// Series by name out of frames: name patterns, the highest attempt where a restart repeated a step, fewer points.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mp/v1/metrics_service.pb.h"

namespace mp {

// `*` stands for any run of characters.
bool MatchesPattern(std::string_view name, std::string_view pattern);

// Collects points; a later Add of the same step replaces the earlier one, so add attempts in rising order.
class SeriesBuilder {
 public:
  explicit SeriesBuilder(const v1::QueryMetricsRequest& request);
  void AddFrame(int rank, const v1::Frame& frame);
  void AddEvaluation(int rank, const v1::Evaluation& evaluation);
  v1::QueryMetricsResponse Build() const;

 private:
  bool Wanted(const std::string& name, bool is_scalar) const;
  void Add(const std::string& name, int rank, int64_t step, double value);

  v1::QueryMetricsRequest request_;
  std::map<std::pair<std::string, int>, std::map<int64_t, double>> points_;
};

}  // namespace mp
