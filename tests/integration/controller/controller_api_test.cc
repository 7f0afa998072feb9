// A whole controller on loopback, spoken to as clients and workers do, and as they should not.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "mp/v1/job_service.grpc.pb.h"
#include "mp/v1/log_service.grpc.pb.h"
#include "mp/v1/metrics_service.grpc.pb.h"
#include "mp/v1/node_service.grpc.pb.h"
#include "mp/v1/worker_service.grpc.pb.h"
#include "server/controller.h"

namespace mp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsSubsetOf;

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
}

class Folder {
 public:
  Folder() {
    std::string pattern = testing::TempDir() + "/controller-api-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class ControllerApiTest : public testing::Test {
 protected:
  ControllerApiTest() {
    ControllerOptions options;
    options.data_dir = folder_.path();
    options.listen = "127.0.0.1:0";
    options.metrics_listen = "";
    absl::StatusOr<std::unique_ptr<Controller>> started = Controller::Start(options);
    if (!started.ok()) throw std::runtime_error(std::string(started.status().message()));
    controller_ = *std::move(started);
    channel_ = grpc::CreateChannel(controller_->address(), grpc::InsecureChannelCredentials());
    jobs_ = v1::JobService::NewStub(channel_);
    metrics_ = v1::MetricsService::NewStub(channel_);
    logs_ = v1::LogService::NewStub(channel_);
    workers_ = v1::WorkerService::NewStub(channel_);
  }
  ~ControllerApiTest() override { controller_->Stop(); }

  grpc::Status Create(const std::string& document, v1::Job* job) {
    v1::CreateJobRequest request;
    request.set_spec_document(document);
    request.set_working_directory("/tmp");
    grpc::ClientContext context;
    SetDeadline(&context);
    return jobs_->CreateJob(&context, request, job);
  }

  grpc::Status Get(const std::string& name, v1::Job* job) {
    v1::GetJobRequest request;
    request.set_name(name);
    grpc::ClientContext context;
    SetDeadline(&context);
    return jobs_->GetJob(&context, request, job);
  }

  // The first answer to one request on a stream of bytes.
  std::string Raw(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    SetDeadline(&context);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, method, &queue);
    const auto next = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    EXPECT_TRUE(next());
    const grpc::Slice slice(bytes);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    EXPECT_TRUE(next());
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    std::string text;
    if (next()) {
      std::vector<grpc::Slice> slices;
      EXPECT_TRUE(answer.Dump(&slices).ok());
      for (const grpc::Slice& part : slices) text.append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    EXPECT_TRUE(status.ok()) << method << ": " << status.error_message();
    return text;
  }

  Folder folder_;
  std::unique_ptr<Controller> controller_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::MetricsService::Stub> metrics_;
  std::unique_ptr<v1::LogService::Stub> logs_;
  std::unique_ptr<v1::WorkerService::Stub> workers_;
};

// A worker that speaks the protocol by hand, with one CPU slot.
class HandWorker {
 public:
  using Stream = grpc::ClientReaderWriter<v1::WorkerMessage, v1::ControllerMessage>;

  HandWorker(v1::WorkerService::Stub* stub, const std::string& name, int devices = 1) {
    SetDeadline(&context_);
    stream_ = stub->Session(&context_);
    v1::WorkerMessage message;
    message.mutable_register_()->set_node_name(name);
    message.mutable_register_()->set_instance_id("instance of " + name);
    message.mutable_register_()->set_node_class(v1::ResourceSpec::CPU);
    message.mutable_register_()->set_address("127.0.0.1");
    for (int i = 0; i < devices; ++i) message.mutable_register_()->add_devices()->set_index(i);
    Send(message);
  }
  ~HandWorker() {
    context_.TryCancel();
    stream_->Finish();
  }

  void Send(const v1::WorkerMessage& message) { EXPECT_TRUE(stream_->Write(message)); }
  v1::ControllerMessage Await(v1::ControllerMessage::MessageCase wanted) {
    v1::ControllerMessage message;
    while (stream_->Read(&message)) {
      if (message.message_case() == wanted) return message;
    }
    ADD_FAILURE() << "the stream ended before message " << wanted;
    return {};
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
};

constexpr char kCommand[] = R"({name: NAME, workload: {command: ["true"]}, resources: {nodes: 1}})";
std::string Command(const std::string& name) {
  std::string text = kCommand;
  return text.replace(text.find("NAME"), 4, name);
}

TEST_F(ControllerApiTest, HealthIsServing) {
  EXPECT_EQ(Raw("/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
}

TEST_F(ControllerApiTest, ReflectionListsEveryService) {
  const std::string answer = Raw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*");
  for (const char* service : {"mp.v1.JobService", "mp.v1.NodeService", "mp.v1.MetricsService", "mp.v1.LogService",
                              "mp.v1.WorkerService", "grpc.health.v1.Health"}) {
    EXPECT_THAT(answer, HasSubstr(service));
  }
}

TEST_F(ControllerApiTest, HostileSpecsAreRefusedAndNothingIsStored) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[";
  std::string aliases = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    absl::StrAppend(&aliases, std::string(1, c), ": &", std::string(1, c), " [");
    for (int i = 0; i < 9; ++i) absl::StrAppend(&aliases, i == 0 ? "*" : ", *", std::string(1, c - 1));
    absl::StrAppend(&aliases, "]\n");
  }
  const std::vector<std::string> documents = {"",
                                              "\n",
                                              "null",
                                              "[]",
                                              "7",
                                              "{",
                                              "\xff\xfe\x00",
                                              std::string(3, '\0'),
                                              deep,
                                              "{\"a\":" + deep,
                                              aliases,
                                              "name: x\nname: y",
                                              "{name: " + std::string(1 << 20, 'n') + "}",
                                              "name: ../../etc",
                                              "name: \"a\\nb\"",
                                              "{name: n, training: {learning_rate: .nan}}",
                                              "{name: n, training: {max_steps: 99999999999999999999}}",
                                              "{name: n, resources: {nodes: 2147483647, devices_per_node: 2147483647}}",
                                              "{name: n, workload: {command: []}}",
                                              "{name: n, workload: {command: [\"a\\0b\"]}}",
                                              "{name: n, model: {config: {model_type: llama, hidden_size: 1e308}}}",
                                              "*x",
                                              "&x *x",
                                              "!!binary x",
                                              "? x"};
  for (const std::string& document : documents) {
    v1::Job job;
    const grpc::Status status = Create(document, &job);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << document.substr(0, 80) << " -> " << status.error_message().substr(0, 200);
    EXPECT_FALSE(status.error_message().empty());
    EXPECT_LT(status.error_message().size(), 8192U) << document.substr(0, 80);
  }
  v1::ListJobsResponse list;
  grpc::ClientContext context;
  SetDeadline(&context);
  ASSERT_TRUE(jobs_->ListJobs(&context, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
}

TEST_F(ControllerApiTest, RequestIdMakesCreationRepeatable) {
  v1::CreateJobRequest request;
  request.set_spec_document(Command("once"));
  request.set_working_directory("/tmp");
  request.set_request_id("8f0c0c2e-5d4c-4a37-9d6e-2f5e7b1d7a11");
  std::string uid;
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::Job job;
    const grpc::Status status = jobs_->CreateJob(&context, request, &job);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(job.uid(), i == 0 ? job.uid() : uid);
    uid = job.uid();
  }
}

TEST_F(ControllerApiTest, AWorkerMustBeginWithRegister) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto stream = workers_->Session(&context);
  v1::WorkerMessage message;
  message.mutable_heartbeat()->set_sequence(1);
  ASSERT_TRUE(stream->Write(message));
  v1::ControllerMessage answer;
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ControllerApiTest, AMessageAboutSomebodyElsesRankHasNoEffect) {
  v1::Job job;
  ASSERT_TRUE(Create(Command("mine"), &job).ok());
  HandWorker owner(workers_.get(), "owner");
  const v1::AttemptId id = owner.Await(v1::ControllerMessage::kPrepareAttempt).prepare_attempt().id();
  HandWorker other(workers_.get(), "other");
  other.Await(v1::ControllerMessage::kRegistered);
  v1::WorkerMessage message;
  *message.mutable_rank_exited()->mutable_id() = id;
  message.mutable_rank_exited()->set_cause(v1::END_CAUSE_BAD_CONFIG);
  other.Send(message);
  *message.mutable_prepared()->mutable_id() = id;
  message.mutable_prepared()->add_errors()->set_cause(v1::END_CAUSE_MISSING_FILE);
  other.Send(message);
  *message.mutable_attempt_ended()->mutable_id() = id;
  other.Send(message);
  other.Await(v1::ControllerMessage::kForgetAttempt);  // so all three have been read
  for (const int rank : {-1, 1, std::numeric_limits<int>::max()}) {
    *message.mutable_rank_exited()->mutable_id() = id;
    message.mutable_rank_exited()->set_rank(rank);
    message.mutable_rank_exited()->set_cause(v1::END_CAUSE_BAD_CONFIG);
    owner.Send(message);
  }
  message.mutable_heartbeat()->set_sequence(9);
  owner.Send(message);
  owner.Await(v1::ControllerMessage::kHeartbeatAck);
  ASSERT_TRUE(Get("mine", &job).ok());
  EXPECT_EQ(job.state(), v1::Job::STARTING) << job.message();
}

TEST_F(ControllerApiTest, OutputIsTakenForRanksOfTheNewestAttemptOnly) {
  v1::Job job;
  ASSERT_TRUE(Create(Command("talks"), &job).ok());
  HandWorker worker(workers_.get(), "w");
  const v1::AttemptId good = worker.Await(v1::ControllerMessage::kPrepareAttempt).prepare_attempt().id();
  struct Case {
    std::string uid;
    int attempt;
    int rank;
    bool refused;
  };
  const std::vector<Case> cases = {
      {good.job_uid(), good.attempt(), 0, false}, {good.job_uid(), good.attempt() + 1, 0, true},
      {good.job_uid(), good.attempt(), -1, true}, {good.job_uid(), good.attempt(), 1000000, true},
      {"../../../../tmp/x", 1, 0, true},          {"", 0, 0, true}};
  for (const Case& c : cases) {
    grpc::ClientContext log_context;
    SetDeadline(&log_context);
    const auto logs = workers_->ShipLogs(&log_context);
    v1::ShipLogsRequest chunk;
    chunk.mutable_id()->set_job_uid(c.uid);
    chunk.mutable_id()->set_attempt(c.attempt);
    chunk.set_rank(c.rank);
    chunk.set_data("hello\n");
    v1::ShipLogsResponse stored;
    ASSERT_TRUE(logs->Write(chunk));
    ASSERT_TRUE(logs->Read(&stored));
    EXPECT_EQ(stored.refused(), c.refused) << c.uid << " " << c.attempt << " " << c.rank;
    // A hole, an offset below zero: the answer says where to go on.
    for (const int64_t offset : {int64_t{100}, int64_t{-5}, std::numeric_limits<int64_t>::min()}) {
      chunk.set_offset(offset);
      ASSERT_TRUE(logs->Write(chunk));
      ASSERT_TRUE(logs->Read(&stored));
      EXPECT_EQ(stored.stored(), c.refused ? 0 : 6);
    }
    grpc::ClientContext event_context;
    SetDeadline(&event_context);
    const auto events = workers_->ShipEvents(&event_context);
    v1::ShipEventsRequest batch;
    *batch.mutable_id() = chunk.id();
    batch.set_rank(c.rank);
    batch.set_first_sequence(1);
    batch.add_events()->mutable_frame()->set_step(1);
    (*batch.mutable_events(0)->mutable_frame()->mutable_scalars())["loss"] = std::numeric_limits<double>::quiet_NaN();
    v1::ShipEventsResponse kept;
    ASSERT_TRUE(events->Write(batch));
    ASSERT_TRUE(events->Read(&kept));
    EXPECT_EQ(kept.refused(), c.refused);
    EXPECT_EQ(kept.stored(), c.refused ? 0 : 1);
    batch.set_first_sequence(std::numeric_limits<int64_t>::min());
    ASSERT_TRUE(events->Write(batch));
    if (c.refused) continue;
    EXPECT_FALSE(events->Read(&kept));
    EXPECT_EQ(events->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

// A reader that never reads holds one message and nobody else.
TEST_F(ControllerApiTest, AStoppedReaderHoldsNobodyBack) {
  v1::Job job;
  ASSERT_TRUE(Create(Command("stream"), &job).ok());
  HandWorker worker(workers_.get(), "w");
  const v1::AttemptId id = worker.Await(v1::ControllerMessage::kPrepareAttempt).prepare_attempt().id();
  v1::StreamMetricsRequest request;
  request.set_job("stream");
  grpc::ClientContext stopped_context;
  SetDeadline(&stopped_context);
  const auto stopped = metrics_->StreamMetrics(&stopped_context, request);
  grpc::ClientContext reading_context;
  SetDeadline(&reading_context);
  const auto reading = metrics_->StreamMetrics(&reading_context, request);

  constexpr int kFrames = 300;
  grpc::ClientContext ship_context;
  SetDeadline(&ship_context);
  const auto ship = workers_->ShipEvents(&ship_context);
  v1::ShipEventsRequest batch;
  *batch.mutable_id() = id;
  auto* frame = batch.add_events()->mutable_frame();
  for (int i = 0; i < 400; ++i) (*frame->mutable_scalars())[absl::StrCat("some.long.name.of.a.tensor.", i)] = i;
  for (int step = 1; step <= kFrames; ++step) {
    frame->set_step(step);
    batch.set_first_sequence(step);
    v1::ShipEventsResponse kept;
    ASSERT_TRUE(ship->Write(batch));
    ASSERT_TRUE(ship->Read(&kept));
    ASSERT_EQ(kept.stored(), step);
    v1::StreamMetricsResponse response;
    ASSERT_TRUE(reading->Read(&response));
    ASSERT_EQ(response.frame().frame().step(), step);
  }
  // Once it reads again, it finds every frame in order.
  v1::StreamMetricsResponse response;
  for (int step = 1; step <= kFrames; ++step) {
    ASSERT_TRUE(stopped->Read(&response));
    ASSERT_EQ(response.frame().frame().step(), step);
  }
  stopped_context.TryCancel();
  reading_context.TryCancel();
  stopped->Finish();
  reading->Finish();
}

TEST_F(ControllerApiTest, StreamsOfAnUnknownJobSayNotFound) {
  grpc::ClientContext watch_context;
  SetDeadline(&watch_context);
  v1::WatchJobRequest watch;
  watch.set_name("nobody");
  v1::WatchJobResponse event;
  const auto events = jobs_->WatchJob(&watch_context, watch);
  EXPECT_FALSE(events->Read(&event));
  EXPECT_EQ(events->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext log_context;
  SetDeadline(&log_context);
  v1::ReadLogsRequest read;
  read.set_job("nobody");
  v1::ReadLogsResponse chunk;
  const auto output = logs_->ReadLogs(&log_context, read);
  EXPECT_FALSE(output->Read(&chunk));
  EXPECT_EQ(output->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ControllerApiTest, StopEndsOpenStreams) {
  v1::Job job;
  ASSERT_TRUE(Create(Command("open"), &job).ok());
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::WatchJobRequest watch;
  watch.set_name("open");
  v1::WatchJobResponse event;
  const auto events = jobs_->WatchJob(&context, watch);
  ASSERT_TRUE(events->Read(&event));
  std::thread stopper([&] { controller_->Stop(); });
  while (events->Read(&event)) {
  }
  EXPECT_NE(events->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  stopper.join();
}

TEST_F(ControllerApiTest, OneControllerForADataDirectory) {
  ControllerOptions options;
  options.data_dir = folder_.path();
  options.listen = "127.0.0.1:0";
  options.metrics_listen = "";
  const absl::StatusOr<std::unique_ptr<Controller>> second = Controller::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), AllOf(HasSubstr(folder_.path()), HasSubstr("in use")));
}

}  // namespace
}  // namespace mp
