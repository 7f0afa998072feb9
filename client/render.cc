#include "client/render.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace mp::client {
namespace {

std::string Steps(const v1::Job& job) {
  return job.progress().max_steps() > 0 ? absl::StrCat(job.progress().step(), "/", job.progress().max_steps()) : "";
}

std::string Loss(const v1::Job& job) {
  return job.progress().has_loss() ? absl::StrFormat("%.4f", job.progress().loss()) : "";
}

std::string Policy(const v1::Job& job) {
  return job.spec().has_workload() ? "" : v1::PrecisionSpec::Policy_Name(job.spec().precision().policy());
}

std::string Ranks(const v1::Job& job) {
  const auto& resources = job.spec().resources();
  return absl::StrCat(resources.nodes() * resources.devices_per_node(), "x",
                      v1::ResourceSpec::NodeClass_Name(resources.node_class()));
}

std::string Clock(const google::protobuf::Timestamp& stamp) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", ToTime(stamp), absl::UTCTimeZone());
}

std::string Bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return absl::StrFormat("%.3g%s", value, units[unit]);
}

std::string CauseName(v1::EndCause cause) {
  const std::string& name = v1::EndCause_Name(cause);
  return absl::StartsWith(name, "END_CAUSE_") ? name.substr(10) : name;
}

const v1::Series* FindSeries(const std::vector<v1::Series>& series, const std::string& name) {
  const auto it = std::find_if(series.begin(), series.end(),
                               [&](const v1::Series& s) { return s.name() == name && s.values_size() > 0; });
  return it == series.end() ? nullptr : &*it;
}

// "2.1e-05 to 448 over 105 tensors" of the last points of series that end in `suffix`.
std::string LastRange(const std::vector<v1::Series>& series, const std::string& suffix) {
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  int count = 0;
  for (const v1::Series& s : series) {
    if (!absl::EndsWith(s.name(), suffix) || s.values().empty()) continue;
    least = std::min(least, *s.values().rbegin());
    most = std::max(most, *s.values().rbegin());
    ++count;
  }
  return count == 0 ? "" : absl::StrCat(Number(least), " to ", Number(most), " over ", count, " tensors");
}

void Line(std::string* out, const std::string& key, const std::string& value) {
  if (!value.empty()) absl::StrAppendFormat(out, "%-18s %s\n", key + ":", Printable(value));
}

}  // namespace

std::string JobTable(const std::vector<v1::Job>& jobs, bool wide, absl::Time now) {
  std::vector<std::vector<std::string>> rows = {{"NAME", "STATE", "POLICY", "RANKS", "STEP", "LOSS"}};
  if (wide) rows[0].insert(rows[0].end(), {"TRY", "TOKENS/S", "CHECKPOINT", "REASON"});
  rows[0].push_back("AGE");
  for (const v1::Job& job : jobs) {
    std::vector<std::string> row = {Cell(job.name()),  v1::Job::State_Name(job.state()),
                                    Cell(Policy(job)), Ranks(job),
                                    Cell(Steps(job)),  Cell(Loss(job))};
    if (wide) {
      row.push_back(absl::StrCat(job.attempt()));
      row.push_back(job.progress().has_tokens_per_second() ? absl::StrFormat("%.0f", job.progress().tokens_per_second())
                                                           : "<none>");
      row.push_back(job.progress().checkpoint_step() > 0 ? absl::StrCat("step-", job.progress().checkpoint_step())
                                                         : "<none>");
      row.push_back(Cell(job.has_pending_reason() ? v1::PendingReason::Code_Name(job.pending_reason().code())
                         : job.stop_cause() == v1::END_CAUSE_UNSPECIFIED ? ""
                                                                         : CauseName(job.stop_cause())));
    }
    row.push_back(ShortDuration(now - ToTime(job.create_time())));
    rows.push_back(std::move(row));
  }
  return Table(rows);
}

std::string NodeTable(const std::vector<v1::Node>& nodes, bool wide, absl::Time now) {
  std::vector<std::vector<std::string>> rows = {{"NAME", "CLASS", "STATE", "DEVICES", "USED", "JOBS"}};
  if (wide) rows[0].insert(rows[0].end(), {"ADDRESS", "LABELS", "VERSION"});
  rows[0].push_back("HEARTBEAT");
  for (const v1::Node& node : nodes) {
    int used = 0;
    std::vector<std::string> jobs;
    for (const auto& [job, count] : node.devices_in_use()) {
      used += count;
      jobs.push_back(job);
    }
    std::sort(jobs.begin(), jobs.end());
    std::vector<std::string> row = {Cell(node.name()),
                                    v1::ResourceSpec::NodeClass_Name(node.node_class()),
                                    v1::Node::State_Name(node.state()),
                                    absl::StrCat(node.devices_size()),
                                    absl::StrCat(used),
                                    Cell(absl::StrJoin(jobs, ","))};
    if (wide) {
      std::vector<std::string> labels;
      for (const auto& [key, value] : node.labels()) labels.push_back(absl::StrCat(key, "=", value));
      std::sort(labels.begin(), labels.end());
      row.insert(row.end(), {Cell(node.address()), Cell(absl::StrJoin(labels, ",")), Cell(node.worker_version())});
    }
    row.push_back(node.has_last_heartbeat_time() ? ShortDuration(now - ToTime(node.last_heartbeat_time())) : "<none>");
    rows.push_back(std::move(row));
  }
  return Table(rows);
}

std::string DescribeJob(const v1::Job& job, const std::vector<v1::JobEvent>& events, absl::Time now) {
  std::string out;
  Line(&out, "Name", job.name());
  Line(&out, "State", v1::Job::State_Name(job.state()));
  if (job.has_pending_reason())
    Line(&out, "Waits because",
         absl::StrCat(v1::PendingReason::Code_Name(job.pending_reason().code()), ": ", job.pending_reason().message()));
  Line(&out, "Message", job.message());
  if (job.stop_cause() != v1::END_CAUSE_UNSPECIFIED) Line(&out, "Cause", CauseName(job.stop_cause()));
  Line(&out, "Policy", Policy(job));
  Line(&out, "Ranks", Ranks(job));
  Line(&out, "Step", Steps(job));
  Line(&out, "Loss", Loss(job));
  if (job.progress().has_eval_loss())
    Line(&out, "Evaluation loss", absl::StrFormat("%.4f", job.progress().eval_loss()));
  Line(&out, "Checkpoint", job.progress().checkpoint_path());
  Line(&out, "Directory", job.working_directory());
  Line(&out, "Created",
       absl::StrCat(Clock(job.create_time()), " (", ShortDuration(now - ToTime(job.create_time())), " ago)"));
  if (job.has_start_time()) Line(&out, "Started", Clock(job.start_time()));
  if (job.has_end_time()) Line(&out, "Ended", Clock(job.end_time()));
  if (!job.attempts().empty()) {
    out += "\nAttempts:\n";
    std::vector<std::vector<std::string>> rows = {{"  NUMBER", "NODES", "CAUSE", "MESSAGE"}};
    for (const v1::Attempt& attempt : job.attempts()) {
      std::vector<std::string> nodes;
      for (const v1::Placement& placement : attempt.placements()) nodes.push_back(placement.node());
      rows.push_back({absl::StrCat("  ", attempt.number()), Cell(absl::StrJoin(nodes, ",")),
                      attempt.cause() == v1::END_CAUSE_UNSPECIFIED ? "<none>" : CauseName(attempt.cause()),
                      Printable(attempt.message())});
    }
    out += Table(rows);
  }
  if (!events.empty()) {
    out += "\nEvents:\n";
    for (const v1::JobEvent& event : events) absl::StrAppend(&out, "  ", EventLine(event), "\n");
  }
  return out;
}

std::string EventLine(const v1::JobEvent& event) {
  const std::string what = event.type() == v1::JobEvent::STATE_CHANGED ? v1::Job::State_Name(event.state())
                                                                       : v1::JobEvent::Type_Name(event.type());
  return absl::StrCat(Clock(event.time()), "  ", what, "  ", Printable(event.message()));
}

std::string ProgressLine(const v1::Frame& frame, int64_t max_steps) {
  const auto value = [&](const char* name) {
    const auto it = frame.scalars().find(name);
    return it == frame.scalars().end() ? std::nan("") : it->second;
  };
  std::string line = absl::StrCat("step ", frame.step());
  if (max_steps > 0) absl::StrAppend(&line, "/", max_steps);
  if (frame.scalars().contains("loss")) absl::StrAppendFormat(&line, "  loss %.4f", value("loss"));
  if (frame.scalars().contains("grad_norm")) absl::StrAppendFormat(&line, "  grad norm %.3g", value("grad_norm"));
  if (value("loss_scale") != 1 && frame.scalars().contains("loss_scale"))
    absl::StrAppendFormat(&line, "  scale %g", value("loss_scale"));
  if (frame.scalars().contains("tokens_per_second"))
    absl::StrAppendFormat(&line, "  %.0f tokens/s", value("tokens_per_second"));
  return line;
}

std::string ProgressBar(int64_t step, int64_t max_steps, int width) {
  const int filled = max_steps > 0 ? static_cast<int>(std::min<int64_t>(width, step * width / max_steps)) : 0;
  return absl::StrCat("[", std::string(static_cast<size_t>(filled), '#'),
                      std::string(static_cast<size_t>(width - filled), '.'), "]");
}

std::string Summary(const v1::Job& job, const std::vector<v1::Series>& scalars, const std::vector<v1::Series>& tensors,
                    absl::Time now) {
  std::string out = absl::StrCat("\nJob ", job.name(), " ", v1::Job::State_Name(job.state()),
                                 job.message().empty() ? "" : absl::StrCat(": ", Printable(job.message())), "\n");
  if (const v1::Series* loss = FindSeries(scalars, "loss")) {
    Line(&out, "  Loss",
         absl::StrFormat("%.4f (step %d) -> %.4f (step %d)", loss->values(0), loss->steps(0), *loss->values().rbegin(),
                         *loss->steps().rbegin()));
  }
  if (const v1::Series* loss = FindSeries(scalars, "eval_loss")) {
    Line(&out, "  Evaluation loss",
         absl::StrFormat("%.4f (step %d) -> %.4f (step %d)", loss->values(0), loss->steps(0), *loss->values().rbegin(),
                         *loss->steps().rbegin()));
  }
  if (const v1::Series* rate = FindSeries(scalars, "tokens_per_second")) {
    std::vector<double> sorted(rate->values().begin(), rate->values().end());
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<int64_t>(sorted.size() / 2), sorted.end());
    Line(&out, "  Tokens/s", absl::StrFormat("%.0f (median, all ranks)", sorted[sorted.size() / 2]));
  }
  if (const v1::Series* scale = FindSeries(scalars, "loss_scale"); scale != nullptr && *scale->values().rbegin() != 1) {
    const v1::Series* skipped = FindSeries(scalars, "skipped_steps");
    Line(&out, "  Loss scale",
         absl::StrCat(Number(*scale->values().rbegin()), ", ",
                      Number(skipped == nullptr ? 0 : *skipped->values().rbegin()), " step(s) skipped"));
  }
  Line(&out, "  FP8 scales", LastRange(tensors, "/scale"));
  Line(&out, "  FP8 amaxes", LastRange(tensors, "/amax"));
  if (const v1::Series* memory = FindSeries(scalars, "memory_peak_bytes"))
    Line(&out, "  Peak memory", Bytes(static_cast<int64_t>(*memory->values().rbegin())) + " (rank 0)");
  const std::string& checkpoint = job.progress().checkpoint_path();
  if (!checkpoint.empty())
    Line(&out, "  Checkpoint",
         checkpoint[0] == '/' ? checkpoint : absl::StrCat(job.working_directory(), "/", checkpoint));
  if (job.has_start_time())
    Line(&out, "  Time",
         absl::StrCat(ShortDuration((job.has_end_time() ? ToTime(job.end_time()) : now) - ToTime(job.start_time())),
                      job.attempt() > 1 ? absl::StrCat(", ", job.attempt(), " attempts") : ""));
  if (!scalars.empty()) Line(&out, "  Metrics", absl::StrCat("mpctl metrics ", job.name()));
  return out;
}

std::string SeriesTable(const std::vector<v1::Series>& series) {
  std::vector<std::vector<std::string>> rows = {
      {"SERIES", "RANK", "POINTS", "FIRST-STEP", "FIRST", "LAST-STEP", "LAST"}};
  for (const v1::Series& s : series) {
    if (s.values().empty()) continue;
    rows.push_back({Cell(s.name()), absl::StrCat(s.rank()), absl::StrCat(s.values_size()), absl::StrCat(s.steps(0)),
                    Number(s.values(0)), absl::StrCat(*s.steps().rbegin()), Number(*s.values().rbegin())});
  }
  return Table(rows);
}

}  // namespace mp::client
