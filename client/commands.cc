#include "client/commands.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/exit_code.h"
#include "client/render.h"
#include "proto/utf8.h"

namespace mp::client {
namespace {

// Version 4, RFC 9562.
std::string RandomUuid() {
  std::random_device device;
  uint32_t words[4];
  for (uint32_t& word : words) word = device();
  words[1] = (words[1] & 0xFFFF0FFFU) | 0x00004000U;
  words[2] = (words[2] & 0x3FFFFFFFU) | 0x80000000U;
  return absl::StrFormat("%08x-%04x-%04x-%04x-%04x%08x", words[0], words[1] >> 16, words[1] & 0xFFFF, words[2] >> 16,
                         words[2] & 0xFFFF, words[3]);
}

absl::StatusOr<std::string> ReadDocument(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("-f ", path, ": ", std::generic_category().message(errno)));
  if (std::filesystem::is_directory(path))
    return absl::InvalidArgumentError(absl::StrCat("-f ", path, " is a folder; a file was expected"));
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void PrintMessage(const google::protobuf::Message& message, Format format) {
  Print(format == Format::kJson ? ToJson(message, true) : ToYaml(message));
}

absl::StatusOr<v1::Job> Fetch(Connection* connection, const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  v1::Job job;
  const absl::Status status =
      connection->Call([&](grpc::ClientContext* context) { return connection->jobs().GetJob(context, request, &job); });
  if (!status.ok()) return status;
  return job;
}

}  // namespace

int Report(const absl::Status& status) {
  std::fprintf(stderr, "mpctl: %s\n", Printable(std::string(status.message())).c_str());
  for (const FieldViolation& violation : ViolationsOf(status)) {
    std::fprintf(stderr, "  %s: %s\n", Printable(violation.field).c_str(), Printable(violation.description).c_str());
  }
  return ExitCodeFor(status);
}

int Submit(Connection* connection, const SubmitOptions& options) {
  Format format = options.dry_run ? Format::kYaml : Format::kTable;
  if (!options.format.empty()) {
    const absl::StatusOr<Format> parsed = ParseFormat(options.format);
    if (!parsed.ok()) {
      Report(parsed.status());
      return kUsage;
    }
    format = *parsed;
  }
  absl::StatusOr<std::string> document = ReadDocument(options.file);
  if (!document.ok()) return Report(document.status());
  v1::CreateJobRequest request;
  request.set_spec_document(*std::move(document));
  if (request.spec_document().empty())
    return Report(absl::InvalidArgumentError(
        absl::StrCat("-f ", options.file, " is empty; a spec in YAML or JSON was expected")));
  for (const std::string& assignment : options.overrides) request.add_overrides(assignment);
  if (!options.name.empty()) request.add_overrides(absl::StrCat("name=", options.name));
  request.set_validate_only(options.dry_run);
  request.set_request_id(RandomUuid());
  std::error_code error;
  request.set_working_directory(std::filesystem::current_path(error).string());
  if (const std::string why = WhyNotUtf8(request.working_directory()); !why.empty()) {
    return Report(absl::InvalidArgumentError(absl::StrCat(
        "the name of the working directory, which relative paths of the spec start from, is not UTF-8 text: ", why)));
  }
  v1::Job job;
  // May be repeated: the request id makes it one job.
  const absl::Status status = connection->Call(
      [&](grpc::ClientContext* context) { return connection->jobs().CreateJob(context, request, &job); });
  if (!status.ok()) return Report(status);
  if (options.dry_run) {
    PrintMessage(job.spec(), format == Format::kJson ? Format::kJson : Format::kYaml);
    return kOk;
  }
  if (format == Format::kJson || format == Format::kYaml) {
    PrintMessage(job, format);
  } else {
    Print(absl::StrCat("job/", job.name(), format == Format::kName ? "" : " submitted", "\n"));
  }
  return options.watch ? Watch(connection, {job.name()}) : kOk;
}

int GetJobs(Connection* connection, Format format) {
  v1::ListJobsResponse all;
  v1::ListJobsRequest request;
  do {
    v1::ListJobsResponse page;
    const absl::Status status = connection->Call(
        [&](grpc::ClientContext* context) { return connection->jobs().ListJobs(context, request, &page); });
    if (!status.ok()) return Report(status);
    request.set_page_token(page.next_page_token());
    all.mutable_jobs()->MergeFrom(page.jobs());
  } while (!request.page_token().empty());
  if (format == Format::kJson || format == Format::kYaml) {
    PrintMessage(all, format);
  } else if (format == Format::kName) {
    for (const v1::Job& job : all.jobs()) Print(absl::StrCat("job/", job.name(), "\n"));
  } else if (all.jobs().empty()) {
    std::fprintf(stderr, "no jobs\n");
  } else {
    Print(JobTable({all.jobs().begin(), all.jobs().end()}, format == Format::kWide, absl::Now()));
  }
  return kOk;
}

int GetJob(Connection* connection, const std::string& name, Format format) {
  const absl::StatusOr<v1::Job> job = Fetch(connection, name);
  if (!job.ok()) return Report(job.status());
  if (format == Format::kJson || format == Format::kYaml) {
    PrintMessage(*job, format);
  } else if (format == Format::kName) {
    Print(absl::StrCat("job/", job->name(), "\n"));
  } else {
    Print(JobTable({*job}, format == Format::kWide, absl::Now()));
    if (job->has_pending_reason())
      std::fprintf(stderr, "%s waits: %s\n", job->name().c_str(), Printable(job->pending_reason().message()).c_str());
  }
  return kOk;
}

int GetNodes(Connection* connection, Format format) {
  v1::ListNodesResponse all;
  v1::ListNodesRequest request;
  do {
    v1::ListNodesResponse page;
    const absl::Status status = connection->Call(
        [&](grpc::ClientContext* context) { return connection->nodes().ListNodes(context, request, &page); });
    if (!status.ok()) return Report(status);
    request.set_page_token(page.next_page_token());
    all.mutable_nodes()->MergeFrom(page.nodes());
  } while (!request.page_token().empty());
  if (format == Format::kJson || format == Format::kYaml) {
    PrintMessage(all, format);
  } else if (format == Format::kName) {
    for (const v1::Node& node : all.nodes()) Print(absl::StrCat("node/", node.name(), "\n"));
  } else if (all.nodes().empty()) {
    std::fprintf(stderr, "no nodes; start mp-worker on a host\n");
  } else {
    Print(NodeTable({all.nodes().begin(), all.nodes().end()}, format == Format::kWide, absl::Now()));
  }
  return kOk;
}

int Describe(Connection* connection, const std::string& name) {
  const absl::StatusOr<v1::Job> job = Fetch(connection, name);
  if (!job.ok()) return Report(job.status());
  // The events so far: the stream of a job that goes on has no end, so it is left after the last one known.
  std::vector<v1::JobEvent> events;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::WatchJobRequest request;
  request.set_name(name);
  const auto stream = connection->jobs().WatchJob(&context, request);
  v1::WatchJobResponse response;
  while ((events.empty() || events.back().sequence() < job->last_event_sequence()) && stream->Read(&response))
    events.push_back(response.event());
  context.TryCancel();
  stream->Finish();
  Print(DescribeJob(*job, events, absl::Now()));
  return kOk;
}

int Cancel(Connection* connection, const std::string& name, bool wait, bool dry_run) {
  v1::CancelJobRequest request;
  request.set_name(name);
  request.set_validate_only(dry_run);
  v1::Job job;
  // Cancelling twice is the same as once.
  const absl::Status status = connection->Call(
      [&](grpc::ClientContext* context) { return connection->jobs().CancelJob(context, request, &job); });
  if (!status.ok()) return Report(status);
  if (dry_run) {
    Print(absl::StrCat("job/", name, " would be cancelled (dry run)\n"));
    return kOk;
  }
  if (wait && job.state() != v1::Job::CANCELLED) {
    grpc::ClientContext context;
    v1::WatchJobRequest watch;
    watch.set_name(name);
    const auto stream = connection->jobs().WatchJob(&context, watch);
    v1::WatchJobResponse response;
    while (stream->Read(&response)) job.set_state(response.event().state());
    if (const absl::Status ended = connection->Explain(stream->Finish()); !ended.ok()) return Report(ended);
  }
  Print(absl::StrCat("job/", name, job.state() == v1::Job::CANCELLED ? " cancelled\n" : " cancelling\n"));
  return kOk;
}

int Logs(Connection* connection, const LogOptions& options) {
  v1::ReadLogsRequest request;
  request.set_job(options.name);
  request.set_follow(options.follow);
  request.set_rank(options.rank);
  request.set_attempt(options.attempt);
  request.set_tail_lines(options.tail);
  grpc::ClientContext context;
  const auto stream = connection->logs().ReadLogs(&context, request);
  v1::ReadLogsResponse response;
  std::map<int, std::string> partial;  // by rank, with all ranks: only whole lines are prefixed
  const auto print_line = [](int rank, const std::string& line) { Print(absl::StrCat("[", rank, "] ", line)); };
  while (stream->Read(&response)) {
    if (options.rank >= 0) {
      Print(response.data());
      continue;
    }
    std::string& rest = partial[response.rank()];
    rest += response.data();
    size_t end = 0;
    while ((end = rest.find('\n')) != std::string::npos) {
      print_line(response.rank(), rest.substr(0, end + 1));
      rest.erase(0, end + 1);
    }
  }
  for (const auto& [rank, rest] : partial) {
    if (!rest.empty()) print_line(rank, rest + "\n");
  }
  const absl::Status status = connection->Explain(stream->Finish());
  return status.ok() ? kOk : Report(status);
}

int Metrics(Connection* connection, const MetricOptions& options) {
  if (options.follow) {
    v1::StreamMetricsRequest request;
    request.set_job(options.name);
    request.set_rank(options.rank);
    grpc::ClientContext context;
    const auto stream = connection->metrics().StreamMetrics(&context, request);
    v1::StreamMetricsResponse response;
    while (stream->Read(&response)) {
      if (response.dropped() > 0)
        std::fprintf(stderr, "mpctl: %lld frames were left out: this reader is too slow\n",
                     static_cast<long long>(response.dropped()));
      const v1::StoredFrame& frame = response.frame();
      Print(options.json ? ToJson(frame, false) + "\n"
                         : absl::StrCat(options.rank < 0 ? absl::StrCat("[", frame.rank(), "] ") : "",
                                        ProgressLine(frame.frame(), 0), "\n"));
    }
    const absl::Status status = connection->Explain(stream->Finish());
    return status.ok() ? kOk : Report(status);
  }
  v1::QueryMetricsRequest request;
  request.set_job(options.name);
  request.set_rank(options.rank);
  for (const std::string& pattern : options.series) request.add_names(pattern);
  v1::QueryMetricsResponse response;
  const absl::Status status = connection->Call(
      [&](grpc::ClientContext* context) { return connection->metrics().QueryMetrics(context, request, &response); });
  if (!status.ok()) return Report(status);
  if (options.json) {
    Print(ToJson(response, true));
  } else if (response.series().empty()) {
    std::fprintf(stderr, "no points yet%s\n",
                 options.series.empty() ? "" : "; names are like loss, eval_loss, 'model.layers.0.*/WEIGHT/scale'");
  } else {
    Print(SeriesTable({response.series().begin(), response.series().end()}));
  }
  return kOk;
}

}  // namespace mp::client
