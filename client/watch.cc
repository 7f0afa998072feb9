// `mpctl watch`: events and progress until the job ends, across a controller's restart.
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/render.h"
#include "client/terminal.h"

namespace mp::client {
namespace {

// Where events, frames and the bar share a terminal, a line clears the bar first.
class Screen {
 public:
  explicit Screen(bool json) : json_(json), bar_(!json && IsTerminal()) {}

  void Event(const v1::JobEvent& event) {
    if (json_) {
      v1::WatchJobResponse response;
      *response.mutable_event() = event;
      return Line(ToJson(response, false));
    }
    Line(EventLine(event));
  }

  void Frame(const v1::StoredFrame& frame, int64_t max_steps) {
    if (json_) {
      v1::StreamMetricsResponse response;
      *response.mutable_frame() = frame;
      return Line(ToJson(response, false));
    }
    const std::string text = ProgressLine(frame.frame(), max_steps);
    if (!bar_) return Line(text);
    const absl::MutexLock lock(&mutex_);
    std::printf("\r\033[K%s %s", ProgressBar(frame.frame().step(), max_steps, 24).c_str(), text.c_str());
    std::fflush(stdout);
    drawn_ = true;
  }

  void Line(const std::string& text) {
    const absl::MutexLock lock(&mutex_);
    std::printf("%s%s\n", drawn_ ? "\r\033[K" : "", text.c_str());
    std::fflush(stdout);
    drawn_ = false;
  }

  void Done() {
    const absl::MutexLock lock(&mutex_);
    if (drawn_) std::printf("\n");
    std::fflush(stdout);
    drawn_ = false;
  }

 private:
  const bool json_;
  const bool bar_;
  absl::Mutex mutex_;
  bool drawn_ ABSL_GUARDED_BY(mutex_) = false;
};

// Streams break when the controller is restarted; they go on from their cursor.
template <typename Open>
absl::Status Resume(Connection* connection, const std::string& what, Open&& stream_once) {
  constexpr absl::Duration kGiveUp = absl::Seconds(60);
  absl::Time lost = absl::InfiniteFuture();
  while (true) {
    bool progressed = false;
    absl::Status status = connection->Explain(stream_once(&progressed));
    if (status.code() != absl::StatusCode::kUnavailable && status.code() != absl::StatusCode::kCancelled) return status;
    if (progressed || lost == absl::InfiniteFuture()) {
      lost = absl::Now();
      std::fprintf(stderr, "mpctl: %s: the controller is away; waiting for it\n", what.c_str());
    }
    if (absl::Now() - lost > kGiveUp) return status;
    absl::SleepFor(absl::Milliseconds(300));
  }
}

std::vector<v1::Series> Query(Connection* connection, const std::string& job, const std::vector<std::string>& names) {
  v1::QueryMetricsRequest request;
  request.set_job(job);
  for (const std::string& name : names) request.add_names(name);
  v1::QueryMetricsResponse response;
  const absl::Status status = connection->Call(
      [&](grpc::ClientContext* context) { return connection->metrics().QueryMetrics(context, request, &response); });
  if (!status.ok()) return {};
  return {response.series().begin(), response.series().end()};
}

}  // namespace

int Watch(Connection* connection, const WatchOptions& options) {
  v1::GetJobRequest get;
  get.set_name(options.name);
  v1::Job job;
  absl::Status status =
      connection->Call([&](grpc::ClientContext* context) { return connection->jobs().GetJob(context, get, &job); });
  if (!status.ok()) return Report(status);
  Screen screen(options.json);
  std::atomic<bool> events_over = false;
  absl::Mutex context_mutex;
  grpc::ClientContext* metrics_context = nullptr;  // guarded by context_mutex

  std::thread frames([&] {
    int64_t cursor = 0;
    Resume(connection, "metrics", [&](bool* progressed) {
      grpc::ClientContext context;
      {
        const absl::MutexLock lock(&context_mutex);
        if (events_over) return grpc::Status::OK;
        metrics_context = &context;
      }
      v1::StreamMetricsRequest request;
      request.set_job(options.name);
      request.set_after_sequence(cursor);
      request.set_scalars_only(!options.json);
      const auto stream = connection->metrics().StreamMetrics(&context, request);
      v1::StreamMetricsResponse response;
      while (stream->Read(&response)) {
        *progressed = true;
        cursor = response.frame().sequence();
        screen.Frame(response.frame(), job.progress().max_steps());
      }
      grpc::Status ended = stream->Finish();
      const absl::MutexLock lock(&context_mutex);
      metrics_context = nullptr;
      return ended;
    }).IgnoreError();
  });

  int64_t cursor = 0;
  status = Resume(connection, "events", [&](bool* progressed) {
    grpc::ClientContext context;
    v1::WatchJobRequest request;
    request.set_name(options.name);
    request.set_after_sequence(cursor);
    const auto stream = connection->jobs().WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (stream->Read(&response)) {
      *progressed = true;
      cursor = response.event().sequence();
      screen.Event(response.event());
    }
    return stream->Finish();
  });
  // The frames of a job that is over end by themselves; after an error nobody waits for them.
  if (!status.ok()) {
    const absl::MutexLock lock(&context_mutex);
    events_over = true;
    if (metrics_context != nullptr) metrics_context->TryCancel();
  }
  frames.join();
  screen.Done();
  if (!status.ok()) return Report(status);
  status =
      connection->Call([&](grpc::ClientContext* context) { return connection->jobs().GetJob(context, get, &job); });
  if (!status.ok()) return Report(status);
  if (!options.json) {
    const std::vector<v1::Series> scalars = Query(connection, options.name, {});
    const bool fp8 = job.spec().precision().policy() == v1::PrecisionSpec::FP8;
    std::fputs(
        Summary(job, scalars, fp8 ? Query(connection, options.name, {"*/scale", "*/amax"}) : std::vector<v1::Series>{},
                absl::Now())
            .c_str(),
        stdout);
  }
  return ExitCodeFor(job.state());
}

}  // namespace mp::client
