#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "worker/agent/devices.h"
#include "worker/agent/environment.h"
#include "worker/agent/file_check.h"
#include "worker/agent/rank.h"
#include "worker/agent/rendezvous.h"

namespace mp::agent {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(ReportLinesTest, PiecesMakeLinesAndBadOnesAreTold) {
  Rank rank;
  std::vector<v1::TrainerEvent> events;
  std::vector<std::string> bad;
  ParseReports(R"({"rank":1,"frame":{"step":"7","scalars":{"loss":"Na)", &rank, &events, &bad);
  EXPECT_TRUE(events.empty());
  ParseReports(
      "N\"}}}\nnot json\n\n{\"later\":{}}\n{\"rank\":1,\"started\":{\"world_size\":2,\"new_field\":1}}\n{\"fra", &rank,
      &events, &bad);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].frame().step(), 7);
  EXPECT_EQ(events[1].started().world_size(), 2);
  EXPECT_EQ(bad.size(), 2U) << "text, and an event that nobody knows";
}

TEST(ReportLinesTest, TextThatIsNotUtf8IsIgnored) {
  Rank rank;
  std::vector<v1::TrainerEvent> events;
  std::vector<std::string> bad;
  ParseReports("{\"failed\":{\"message\":\"\xff\"}}\n{\"failed\":{\"message\":\"\\ud800\"}}\n", &rank, &events, &bad);
  EXPECT_TRUE(events.empty());
  EXPECT_EQ(bad.size(), 2U);
}

TEST(ReportLinesTest, AnEndlessLineIsGivenUp) {
  Rank rank;
  std::vector<v1::TrainerEvent> events;
  std::vector<std::string> bad;
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 17; ++i) ParseReports(piece, &rank, &events, &bad);
  EXPECT_EQ(bad.size(), 1U);
  EXPECT_LT(rank.report_rest.size(), 2U << 20);
}

TEST(EnvironmentTest, IsAnAllowListWithTorchrunsNames) {
  v1::PrepareAttempt prepare;
  prepare.mutable_id()->set_job("j");
  prepare.mutable_id()->set_attempt(3);
  prepare.set_world_size(4);
  prepare.set_resume_from("latest");
  prepare.mutable_placement()->set_first_rank(2);
  prepare.mutable_placement()->set_ranks(2);
  (*prepare.mutable_spec()->mutable_workload()->mutable_env())["MINE"] = "1";
  (*prepare.mutable_spec()->mutable_workload()->mutable_env())["RANK"] = "99";
  v1::LaunchAttempt launch;
  launch.set_rendezvous_address("10.0.0.1");
  launch.set_rendezvous_port(77);
  RankPlace place;
  place.rank = 3;
  place.local_rank = 1;
  place.device = 5;
  place.report_fd = 8;
  place.token = "t";
  const char* own[] = {"PATH=/bin", "SECRET=x", "LC_ALL=C", "LD_PRELOAD=evil", "MP_SERVER=x", nullptr};
  const auto environment = RankEnvironment(prepare, launch, v1::ResourceSpec::P5, "", place, own);
  for (const char* entry : {"PATH=/bin", "LC_ALL=C", "RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
                            "GROUP_RANK=1", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=77", "MINE=1", "MP_ATTEMPT=3",
                            "MP_RESUME_FROM=latest", "MP_REPORT_FD=8", "CUDA_VISIBLE_DEVICES=5", "MP_RANK_TOKEN=t"}) {
    EXPECT_THAT(environment, Contains(entry));
  }
  for (const char* start : {"SECRET", "LD_PRELOAD", "MP_SERVER", "MP_RENDEZVOUS_FD", "GLOO_SOCKET_IFNAME"})
    EXPECT_THAT(environment, Not(Contains(StartsWith(start))));
}

TEST(FileCheckTest, NamesHostFieldAndPathOfEachFault) {
  const auto folder = std::filesystem::temp_directory_path() / ("agent_test-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "good.txt") << "x";
  v1::PrepareAttempt prepare;
  prepare.set_working_directory(folder);
  prepare.set_resume_from("none");
  auto* spec = prepare.mutable_spec();
  spec->mutable_data()->add_train()->set_path("good.txt");
  spec->mutable_data()->add_train()->set_path("absent.txt");
  spec->mutable_data()->add_eval()->set_path(folder);
  spec->mutable_training()->set_output_dir("out");
  const auto errors = CheckFiles(prepare, "host-1", "/bin/true");
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0].field(), "data.train[1].path");
  EXPECT_EQ(errors[0].cause(), v1::END_CAUSE_MISSING_FILE);
  EXPECT_THAT(errors[0].message(), HasSubstr("host-1"));
  EXPECT_THAT(errors[0].message(), HasSubstr((folder / "absent.txt").string()));
  EXPECT_THAT(errors[1].message(), HasSubstr("not a regular file"));
  EXPECT_TRUE(std::filesystem::is_directory(folder / "out"));
  v1::PrepareAttempt program;
  program.set_working_directory(folder);
  program.mutable_spec()->mutable_workload()->add_command("surely-no-such-program");
  EXPECT_EQ(CheckFiles(program, "h", "").size(), 1U);
  program.mutable_spec()->mutable_workload()->set_command(0, "sh");
  EXPECT_TRUE(CheckFiles(program, "h", "").empty());
  std::filesystem::remove_all(folder);
}

TEST(RendezvousTest, ThePortIsHeldAndListens) {
  const auto socket = ListenForRendezvous("127.0.0.1");
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_GT(socket->port, 0);
  int listening = 0;
  socklen_t size = sizeof(listening);
  ASSERT_EQ(getsockopt(socket->fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size), 0);
  EXPECT_EQ(listening, 1);
  EXPECT_FALSE(ListenForRendezvous("203.0.113.1").ok()) << "not an address of this host";
}

TEST(DevicesTest, CpuSlotsAreAsAskedAndGpusAreNeverAssumed) {
  const auto cpu = FindDevices("CPU", 3);
  ASSERT_TRUE(cpu.ok());
  EXPECT_EQ(cpu->devices.size(), 3U);
  EXPECT_EQ(cpu->devices[2].index(), 2);
  if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "SKIPPED: this host has a GPU";
  EXPECT_EQ(FindDevices("P5", 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FindDevices("auto", 2)->node_class, v1::ResourceSpec::CPU);
}

}  // namespace
}  // namespace mp::agent
