#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "client/address.h"
#include "client/completion.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "client/render.h"

namespace mp::client {
namespace {

using testing::HasSubstr;

TEST(OutputTest, TablesAreAlignedWithoutTrailingSpaces) {
  EXPECT_EQ(Table({{"NAME", "AGE"}, {"a-long-name", "3s"}}), "NAME         AGE\na-long-name  3s\n");
  EXPECT_EQ(Cell(""), "<none>");
  EXPECT_EQ(Cell("two words"), "two-words");
}

TEST(OutputTest, Durations) {
  EXPECT_EQ(ShortDuration(absl::Seconds(119)), "119s");
  EXPECT_EQ(ShortDuration(absl::Seconds(130)), "2m10s");
  EXPECT_EQ(ShortDuration(absl::Minutes(200)), "3h20m");
  EXPECT_EQ(ShortDuration(absl::Hours(99)), "4d3h");
  EXPECT_EQ(ShortDuration(absl::Seconds(-5)), "0s");
}

TEST(OutputTest, AServersTextCannotCommandTheTerminal) { EXPECT_EQ(Printable("a\033[2Jb\r\x7F\nc"), "a?[2Jb??\nc"); }

TEST(OutputTest, YamlHasPlainNumbersAndReadsBack) {
  v1::JobSpec spec;
  spec.set_name("job");
  spec.mutable_training()->set_max_steps(12);
  spec.mutable_training()->set_output_dir("");
  EXPECT_EQ(ToYaml(spec), "name: job\ntraining:\n  max_steps: 12\n  output_dir: \"\"\n");
  for (const char* name : {"n", "true", "null", "~", "1e3", ".nan", "0x10"}) {
    spec.set_name(name);
    EXPECT_THAT(ToYaml(spec), testing::StartsWith("name: \"" + std::string(name) + "\"\n")) << "a string, not a value";
  }
}

TEST(ExitCodeTest, AreDistinct) {
  EXPECT_EQ(ExitCodeFor(absl::NotFoundError("")), 3);
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), 4);
  EXPECT_EQ(ExitCodeFor(absl::FailedPreconditionError("")), 4);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), 5);
  EXPECT_EQ(ExitCodeFor(absl::AlreadyExistsError("")), 8);
  EXPECT_EQ(ExitCodeFor(v1::Job::FAILED), 6);
  EXPECT_EQ(ExitCodeFor(v1::Job::CANCELLED), 7);
  EXPECT_EQ(ExitCodeFor(v1::Job::SUCCEEDED), 0);
}

class AddressTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("client_test-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "mp");
    setenv("XDG_CONFIG_HOME", folder_.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
    setenv("XDG_STATE_HOME", folder_.c_str(), 1);   // NOLINT(concurrency-mt-unsafe)
    unsetenv("MP_SERVER");                          // NOLINT(concurrency-mt-unsafe)
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(AddressTest, FlagBeforeVariableBeforeContextBeforeDevCluster) {
  EXPECT_EQ(FindServer("", "").status().code(), absl::StatusCode::kFailedPrecondition);
  std::ofstream(DevStateFile()) << R"({"address": "dev:1"})";
  EXPECT_EQ(FindServer("", "")->address, "dev:1");
  std::ofstream(ConfigFile()) << "current_context: a\ncontexts: [{name: a, server: 'a:1'}, {name: b, server: 'b:1'}]\n";
  EXPECT_EQ(FindServer("", "")->address, "a:1");
  EXPECT_EQ(FindServer("", "b")->address, "b:1");
  EXPECT_THAT(std::string(FindServer("", "c").status().message()), HasSubstr("no context \"c\""));
  setenv("MP_SERVER", "env:1", 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EQ(FindServer("", "")->address, "env:1");
  EXPECT_EQ(FindServer("flag:1", "")->source, "--server");
  unsetenv("MP_SERVER");  // NOLINT(concurrency-mt-unsafe)
  std::ofstream(ConfigFile()) << "contexts: [";
  EXPECT_EQ(FindServer("", "").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CompletionTest, KnowsTheTree) {
  CLI::App app{"mpctl"};
  app.add_subcommand("get", "Show")->add_subcommand("jobs", "All jobs");
  app.add_option("--server", "x");
  EXPECT_THAT(CompletionScript(app, "bash"), HasSubstr("\"get\") words=\"jobs"));
  EXPECT_THAT(CompletionScript(app, "fish"), HasSubstr("-a jobs"));
  EXPECT_THAT(CompletionScript(app, "zsh"), HasSubstr("bashcompinit"));
  EXPECT_EQ(CompletionScript(app, "tcsh"), "");
}

TEST(RenderTest, TheDefaultJobTableFitsEightyColumns) {
  v1::Job job;
  job.set_name("a-name-of-20-letters");
  job.set_state(v1::Job::CANCELLED);
  job.mutable_spec()->mutable_precision()->set_policy(v1::PrecisionSpec::BF16);
  job.mutable_spec()->mutable_resources()->set_nodes(16);
  job.mutable_spec()->mutable_resources()->set_devices_per_node(8);
  job.mutable_spec()->mutable_resources()->set_node_class(v1::ResourceSpec::P5);
  job.mutable_progress()->set_step(10000);
  job.mutable_progress()->set_max_steps(10000);
  job.mutable_progress()->set_loss(10.123456);
  const std::string table = JobTable({job}, false, absl::UnixEpoch() + absl::Hours(1000));
  for (const std::string& line : {table.substr(0, table.find('\n')), table.substr(table.find('\n') + 1)})
    EXPECT_LE(line.size(), 81U) << line;
}

TEST(RenderTest, TheSummarySaysWhatWasAskedFor) {
  v1::Job job;
  job.set_name("j");
  job.set_state(v1::Job::SUCCEEDED);
  job.mutable_progress()->set_checkpoint_path("runs/j/step-00000010-attempt-1");
  job.set_working_directory("/w");
  v1::Series loss;
  loss.set_name("loss");
  for (int i = 1; i <= 2; ++i) {
    loss.add_steps(i);
    loss.add_values(6.0 / i);
  }
  v1::Series scale = loss;
  scale.set_name("l/INPUT/scale");
  const std::string text = Summary(job, {loss}, {scale}, absl::UnixEpoch());
  for (const char* part : {"6.0000 (step 1) -> 3.0000 (step 2)", "3 to 3 over 1 tensors",
                           "/w/runs/j/step-00000010-attempt-1", "mpctl metrics j"})
    EXPECT_THAT(text, HasSubstr(part));
}

}  // namespace
}  // namespace mp::client
