#include "server/store/sqlite/sqlite_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/store/sqlite/database.h"

namespace mp {
namespace {

class SqliteStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("sqlite_store_test-" + std::to_string(getpid()) +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path() const { return folder_ / "c.db"; }

  static v1::Job Job(const std::string& uid, const std::string& name) {
    v1::Job job;
    job.set_uid(uid);
    job.set_name(name);
    job.set_state(v1::Job::PENDING);
    return job;
  }

  std::filesystem::path folder_;
};

TEST_F(SqliteStoreTest, WhatIsCommittedIsThereAfterAReopen) {
  {
    auto store = OpenSqliteStore(Path()).value();
    Transaction transaction;
    transaction.jobs = {Job("u2", "second"), Job("u1", "first")};
    v1::Attempt attempt;
    attempt.set_number(1);
    transaction.attempts.emplace_back("u1", attempt);
    for (int i = 1; i <= 3; ++i) {
      v1::JobEvent event;
      event.set_sequence(i);
      event.set_message("e" + std::to_string(i));
      transaction.events.emplace_back("u1", event);
    }
    v1::Node node;
    node.set_name("n");
    transaction.nodes.push_back(node);
    transaction.request_id = "r";
    transaction.request_job_uid = "u1";
    ASSERT_TRUE(store->Commit(transaction).ok());
  }
  auto store = OpenSqliteStore(Path()).value();
  const StoredState state = store->Load().value();
  ASSERT_EQ(state.jobs.size(), 2U);
  EXPECT_EQ(state.jobs[0].name(), "second") << "in the order of their coming";
  EXPECT_EQ(state.jobs[1].attempts_size(), 1);
  EXPECT_EQ(state.nodes.size(), 1U);
  EXPECT_EQ(state.requests.at(0).second, "u1");
  EXPECT_EQ(state.last_events.at(0).second, 3);
  const auto events = store->Events("u1", 1, 1).value();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].message(), "e2");
}

TEST_F(SqliteStoreTest, ATransactionIsWholeOrNothing) {
  auto store = OpenSqliteStore(Path()).value();
  Transaction transaction;
  transaction.jobs = {Job("u1", "a"), Job("u2", "a")};  // names are unique
  EXPECT_FALSE(store->Commit(transaction).ok());
  EXPECT_TRUE(store->Load()->jobs.empty());
}

TEST_F(SqliteStoreTest, ANewerSchemaIsRefused) {
  OpenSqliteStore(Path()).value();
  ASSERT_TRUE(Database::Open(Path(), "FULL")->Execute("PRAGMA user_version=99").ok());
  const auto store = OpenSqliteStore(Path());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(store.status().message().find("99"), std::string::npos);
}

TEST_F(SqliteStoreTest, AFileThatIsNoDatabaseIsNamed) {
  std::ofstream(Path()) << std::string(5000, 'x');
  const auto store = OpenSqliteStore(Path());
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.status().message().find("c.db"), std::string::npos);
}

}  // namespace
}  // namespace mp
