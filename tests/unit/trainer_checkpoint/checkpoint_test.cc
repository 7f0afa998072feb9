#include "worker/trainer/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "worker/trainer/config/error.h"

namespace mp::trainer {
namespace {

namespace fs = std::filesystem;

// Ranks as threads that meet in all_gather.
class Ranks {
 public:
  explicit Ranks(int world) : world_(world), barrier_(world), strings_(static_cast<size_t>(world)) {}

  // Runs `work` on every rank; what it throws comes back, by rank.
  std::vector<std::optional<std::string>> Run(const std::function<void(const CheckpointGroup&)>& work) {
    std::vector<std::optional<std::string>> errors(static_cast<size_t>(world_));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_; ++rank) {
      threads.emplace_back([&, rank] {
        const CheckpointGroup group{rank, world_, [this] { barrier_.arrive_and_wait(); },
                                    [this, rank](const std::string& mine) { return Gather(rank, mine); }};
        try {
          work(group);
        } catch (const TrainerError& error) {
          EXPECT_EQ(error.cause(), EndCause::kCheckpoint);
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  std::vector<std::string> Gather(int rank, const std::string& mine) {
    strings_[static_cast<size_t>(rank)] = mine;
    barrier_.arrive_and_wait();
    std::vector<std::string> all = strings_;
    barrier_.arrive_and_wait();
    return all;
  }
  int world_;
  std::barrier<> barrier_;
  std::vector<std::string> strings_;
};

// Fails the n-th call that changes the disk.
class FailingFileSystem : public FileSystem {
 public:
  explicit FailingFileSystem(int fail_at) : left_(fail_at) {}
  void CreateDirectories(const std::string& path) override {
    Count(path);
    RealFileSystem()->CreateDirectories(path);
  }
  void WriteFile(const std::string& path, const std::vector<Bytes>& pieces) override {
    if (left_ == 1) {
      // As a full disk leaves it: a part is there.
      std::ofstream(path, std::ios::binary) << "torn";
    }
    Count(path);
    RealFileSystem()->WriteFile(path, pieces);
  }
  void SyncDirectory(const std::string& path) override {
    Count(path);
    RealFileSystem()->SyncDirectory(path);
  }
  void ReplaceDirectory(const std::string& from, const std::string& to) override {
    Count(to);
    RealFileSystem()->ReplaceDirectory(from, to);
  }
  void RemoveAll(const std::string& path) override { RealFileSystem()->RemoveAll(path); }
  bool failed() const { return left_ <= 0; }

 private:
  void Count(const std::string& path) {
    if (--left_ == 0) throw TrainerError(EndCause::kCheckpoint, path + ": No space left on device");
  }
  int left_;
};

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("checkpoint_test-" + std::to_string(getpid()) +
                                           testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static constexpr int64_t kSize = 103;
  static at::Tensor Whole(double offset) { return at::arange(0, kSize, at::kFloat) + offset; }

  // Rank r's cut of two tensors; sizes that divide nothing.
  static std::vector<TensorSlice> Slices(const CheckpointGroup& group, bool filled) {
    const int64_t shard = (kSize + group.world_size - 1) / group.world_size;
    const int64_t begin = std::min(kSize, shard * group.rank);
    const int64_t end = std::min(kSize, begin + shard);
    std::vector<TensorSlice> slices;
    for (const auto& [name, offset] : {std::pair("model/a", 0.5), std::pair("exp_avg/a", 1000.0)}) {
      const at::Tensor data = filled ? Whole(offset).slice(0, begin, end).clone() : at::full({end - begin}, -1.0);
      slices.push_back({name, {kSize}, begin, data});
    }
    return slices;
  }

  static ReplicatedState State(int rank) {
    ReplicatedState state;
    state.values = JsonValue::Object{{"step", 7}, {"scale", 0.125}};
    state.tensors["fp8.x"] = at::full({2, 3}, 4.0);
    state.rank_tensors["rng"] = at::full({5}, rank, at::kByte);
    return state;
  }

  std::vector<std::optional<std::string>> Save(int world, int64_t step, int attempt = 1, bool permitted = true,
                                               FileSystem* file_system = RealFileSystem()) {
    return Ranks(world).Run([&](const CheckpointGroup& group) {
      CheckpointInfo info;
      const bool saved = SaveCheckpoint(
          folder_, step, attempt, Slices(group, true), State(group.rank), group,
          [&](const std::string&) { return permitted; }, &info, file_system);
      EXPECT_EQ(saved, permitted);
      if (saved) {
        EXPECT_TRUE(fs::exists(info.path));
      }
    });
  }

  // Loads the newest at `world` and checks every value; the ranks' errors.
  std::vector<std::optional<std::string>> Load(int world, bool same_world = true) {
    const std::string path = ListCheckpoints(folder_).at(0);
    return Ranks(world).Run([&](const CheckpointGroup& group) {
      std::vector<TensorSlice> slices = Slices(group, false);
      const ReplicatedState state = LoadCheckpoint(path, slices, group);
      const auto expected = Slices(group, true);
      for (size_t i = 0; i < slices.size(); ++i) EXPECT_TRUE(at::equal(slices[i].data, expected[i].data));
      EXPECT_EQ(state.values, State(0).values);
      EXPECT_TRUE(at::equal(state.tensors.at("fp8.x"), State(0).tensors.at("fp8.x")));
      EXPECT_EQ(state.rank_tensors.size(), same_world ? 1U : 0U);
      if (same_world) {
        EXPECT_TRUE(at::equal(state.rank_tensors.at("rng"), State(group.rank).rank_tensors.at("rng")));
      }
    });
  }

  static void ExpectNoErrors(const std::vector<std::optional<std::string>>& errors) {
    for (const auto& error : errors) EXPECT_FALSE(error) << *error;
  }
  static void ExpectAllFail(const std::vector<std::optional<std::string>>& errors, const std::string& part) {
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      EXPECT_THAT(*error, testing::HasSubstr(part));
    }
  }

  fs::path folder_;
};

TEST_F(CheckpointTest, LoadsAtAnyWorldSize) {
  for (const int saved : {1, 2, 3}) {
    fs::remove_all(folder_);
    ExpectNoErrors(Save(saved, 5));
    for (const int loaded : {1, 2, 3, 4}) ExpectNoErrors(Load(loaded, saved == loaded));
  }
}

TEST_F(CheckpointTest, NewestFirstAndOnlyVisibleOnes) {
  Save(1, 5);
  Save(1, 20);
  Save(1, 20, 2);
  fs::create_directories(folder_ / ".tmp-step-00000030-attempt-1");
  fs::create_directories(folder_ / "step-40-attempt-1");
  const auto names = ListCheckpoints(folder_);
  ASSERT_EQ(names.size(), 3U);
  EXPECT_THAT(names[0], testing::EndsWith("step-00000020-attempt-2"));
  EXPECT_THAT(names[2], testing::EndsWith("step-00000005-attempt-1"));
}

TEST_F(CheckpointTest, WithoutPermissionNothingIsLeft) {
  ExpectNoErrors(Save(2, 5, 1, false));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(CheckpointTest, TheSameStepAndAttemptIsReplaced) {
  ExpectNoErrors(Save(2, 5));
  ExpectNoErrors(Save(2, 5));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  ExpectNoErrors(Load(2));
}

TEST_F(CheckpointTest, LeftoversOfThisAndEarlierAttemptsGoAndOthersStay) {
  fs::create_directories(folder_ / ".tmp-step-00000001-attempt-1");
  fs::create_directories(folder_ / ".tmp-step-00000001-attempt-3");
  ExpectNoErrors(Save(1, 5, 2));
  EXPECT_FALSE(fs::exists(folder_ / ".tmp-step-00000001-attempt-1"));
  EXPECT_TRUE(fs::exists(folder_ / ".tmp-step-00000001-attempt-3"));
}

TEST_F(CheckpointTest, AnyFailingCallFailsEveryRankAndShowsNothing) {
  Save(1, 1);
  int fail_at = 1;
  for (;; ++fail_at) {
    FailingFileSystem file_system(fail_at);
    const auto errors = Save(1, 9, 1, true, &file_system);
    if (!file_system.failed()) {
      ExpectNoErrors(errors);
      break;
    }
    ExpectAllFail(errors, "No space left");
    // The last sync alone comes after the rename.
    const auto visible = ListCheckpoints(folder_);
    for (const std::string& path : visible) ASSERT_TRUE(fs::exists(fs::path(path) / "metadata.json"));
    ExpectNoErrors(Load(1));
  }
  EXPECT_GE(fail_at, 7);
}

TEST_F(CheckpointTest, EachDamageIsFoundOnEveryRank) {
  const auto damage = [&](const std::function<void(const fs::path&)>& hurt, const std::string& message) {
    fs::remove_all(folder_);
    Save(2, 5);
    hurt(ListCheckpoints(folder_)[0]);
    ExpectAllFail(Load(2), message);
  };
  const auto flip = [](const fs::path& file, int64_t from_end) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-from_end, std::ios::end);
    const char c = static_cast<char>(stream.get() ^ 1);
    stream.seekp(-from_end, std::ios::end);
    stream.put(c);
  };
  damage([&](const fs::path& path) { flip(path / "rank-00001.tensors", 5); }, "rank-00001.tensors: its checksum");
  damage([&](const fs::path& path) { fs::resize_file(path / "rank-00001.tensors", 40); }, "rank-00001.tensors");
  damage([&](const fs::path& path) { fs::remove(path / "rank-00000.tensors"); }, "rank-00000.tensors");
  damage([&](const fs::path& path) { fs::remove(path / "metadata.json"); }, "metadata.json");
  damage(
      [&](const fs::path& path) { fs::resize_file(path / "metadata.json", fs::file_size(path / "metadata.json") / 2); },
      "metadata.json");
  damage([&](const fs::path& path) { flip(path / "metadata.json", 20); }, "metadata.json");
  damage([&](const fs::path& path) { std::ofstream(path / "metadata.json") << "garbage"; }, "metadata.json");
}

TEST_F(CheckpointTest, AnotherModelIsRefused) {
  Save(1, 5);
  const auto errors = Ranks(1).Run([&](const CheckpointGroup& group) {
    std::vector<TensorSlice> slices = {{"model/a", {kSize + 1}, 0, at::zeros({kSize + 1})}};
    LoadCheckpoint(ListCheckpoints(folder_)[0], slices, group);
  });
  ExpectAllFail(errors, "another shape");
  const auto missing = Ranks(1).Run([&](const CheckpointGroup& group) {
    std::vector<TensorSlice> slices = {{"model/b", {3}, 0, at::zeros({3})}};
    LoadCheckpoint(ListCheckpoints(folder_)[0], slices, group);
  });
  ExpectAllFail(missing, "model/b: a part is missing");
}

}  // namespace
}  // namespace mp::trainer
