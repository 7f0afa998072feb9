// Jobs, nodes, events and metrics for people.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/output.h"
#include "mp/v1/job.pb.h"
#include "mp/v1/metrics_service.pb.h"
#include "mp/v1/node_service.pb.h"

namespace mp::client {

std::string JobTable(const std::vector<v1::Job>& jobs, bool wide, absl::Time now);
std::string NodeTable(const std::vector<v1::Node>& nodes, bool wide, absl::Time now);
std::string DescribeJob(const v1::Job& job, const std::vector<v1::JobEvent>& events, absl::Time now);
// One line, without a line feed: "12:00:01 RUNNING all 2 rank(s) run".
std::string EventLine(const v1::JobEvent& event);
// "step 60/120  loss 2.31  ..." from a frame's scalars.
std::string ProgressLine(const v1::Frame& frame, int64_t max_steps);
// A bar of `width` characters for a terminal.
std::string ProgressBar(int64_t step, int64_t max_steps, int width);
// What a training run came to. `last`: the newest points of the FP8 series (*/scale, */amax), may be empty.
std::string Summary(const v1::Job& job, const std::vector<v1::Series>& scalars, const std::vector<v1::Series>& tensors,
                    absl::Time now);
// A row for each series: first and last point.
std::string SeriesTable(const std::vector<v1::Series>& series);

}  // namespace mp::client
