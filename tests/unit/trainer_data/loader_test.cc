#include "worker/trainer/data/loader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "worker/trainer/config/error.h"
#include "worker/trainer/data/permutation.h"

namespace mp::trainer {
namespace {

namespace fs = std::filesystem;

class LoaderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("loader_test-" + std::to_string(getpid()) +
                                           testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Sample i of 8 tokens starts with the bytes of i, so that it can be told apart.
  std::string Write(const std::string& name, int samples) {
    std::ofstream file(folder_ / name, std::ios::binary);
    for (int i = 0; i < samples; ++i) {
      const char bytes[8] = {static_cast<char>(i / 256), static_cast<char>(i % 256), 1, 2, 3, 4, 5, 6};
      file.write(bytes, 8);
    }
    return (folder_ / name).string();
  }

  JobConfig Job(int samples, int batch) {
    JobConfig job;
    job.data.train = {{Write("train", samples)}};
    job.data.eval = {{Write("eval", samples)}};
    job.data.sequence_length = 8;
    job.training.per_device_train_batch_size = batch;
    job.training.per_device_eval_batch_size = batch;
    job.training.seed = 5;
    return job;
  }

  static std::vector<int64_t> Ids(const Batch& batch) {
    std::vector<int64_t> ids;
    for (int64_t row = 0; row < batch.input_ids.size(0); ++row) {
      ids.push_back(batch.input_ids[row][0].item<int64_t>() * 256 + batch.input_ids[row][1].item<int64_t>());
    }
    return ids;
  }

  fs::path folder_;
};

TEST_F(LoaderTest, AnEpochCoversEachSampleOnceWhateverTheWorldSize) {
  for (const int world : {1, 2, 3, 5}) {
    std::multiset<int64_t> seen;
    double wait = 0;
    for (int rank = 0; rank < world; ++rank) {
      const auto loader = MakeTrainLoader(Job(60, 2), rank, world, 256);
      for (int step = 0; step < 60 / (2 * world); ++step) {
        const Batch batch = loader->Next(&wait);
        EXPECT_EQ(batch.input_ids.sizes(), at::IntArrayRef({2, 8}));
        for (const int64_t id : Ids(batch)) seen.insert(id);
      }
    }
    EXPECT_EQ(seen.size(), 60U);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 60U) << world;
  }
}

TEST_F(LoaderTest, TwoRanksTakeTheSameGlobalBatchesAsOne) {
  double wait = 0;
  const auto one = MakeTrainLoader(Job(64, 4), 0, 1, 256);
  const auto first = MakeTrainLoader(Job(64, 2), 0, 2, 256);
  const auto second = MakeTrainLoader(Job(64, 2), 1, 2, 256);
  for (int step = 0; step < 40; ++step) {  // over two epochs
    const auto a = Ids(one->Next(&wait));
    auto b = Ids(first->Next(&wait));
    for (const int64_t id : Ids(second->Next(&wait))) b.push_back(id);
    EXPECT_EQ(std::set<int64_t>(a.begin(), a.end()), std::set<int64_t>(b.begin(), b.end())) << step;
  }
}

TEST_F(LoaderTest, SeekContinuesAsIfNothingHadHappened) {
  double wait = 0;
  const auto whole = MakeTrainLoader(Job(50, 3), 0, 2, 256);
  const auto resumed = MakeTrainLoader(Job(50, 3), 0, 2, 256);
  for (int step = 0; step < 11; ++step) whole->Next(&wait);
  resumed->Seek(whole->position());
  for (int step = 0; step < 12; ++step) EXPECT_EQ(Ids(whole->Next(&wait)), Ids(resumed->Next(&wait)));
}

TEST_F(LoaderTest, AnotherWorldSizeGoesOnWithoutRepeats) {
  double wait = 0;
  const auto one = MakeTrainLoader(Job(64, 4), 0, 1, 256);
  std::multiset<int64_t> seen;
  for (int step = 0; step < 6; ++step) {
    for (const int64_t id : Ids(one->Next(&wait))) seen.insert(id);
  }
  for (int rank = 0; rank < 2; ++rank) {
    const auto loader = MakeTrainLoader(Job(64, 4), rank, 2, 256);
    loader->Seek(one->position());
    for (int step = 0; step < 5; ++step) {
      for (const int64_t id : Ids(loader->Next(&wait))) seen.insert(id);
    }
  }
  EXPECT_EQ(seen.size(), 64U);
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 64U);
}

TEST_F(LoaderTest, LabelsAreTheNextTokens) {
  double wait = 0;
  const auto loader = MakeTrainLoader(Job(4, 4), 0, 1, 256);
  const Batch batch = loader->Next(&wait);
  int64_t ignored = 0;
  for (int64_t row = 0; row < 4; ++row) {
    EXPECT_TRUE(at::equal(batch.labels[row].slice(0, 0, 7), batch.input_ids[row].slice(0, 1)));
    ignored += batch.labels[row][7].item<int64_t>() == -100 ? 1 : 0;
  }
  EXPECT_EQ(ignored, 1) << "only the end of the corpus has no next token";
}

TEST_F(LoaderTest, EvaluationSeesEachSampleOnceWhateverTheWorldSize) {
  for (const int world : {1, 2, 3}) {
    std::multiset<int64_t> seen;
    for (int rank = 0; rank < world; ++rank) {
      const auto loader = MakeEvalLoader(Job(11, 2), rank, world, 256);
      EXPECT_EQ(loader->batches(), (11 + 2 * world - 1) / (2 * world));
      for (int64_t i = 0; i < loader->batches(); ++i) {
        const Batch batch = loader->Get(i);
        for (int64_t row = 0; row < 2; ++row) {
          if ((batch.labels[row] != -100).any().item<bool>()) seen.insert(Ids(batch)[static_cast<size_t>(row)]);
        }
      }
    }
    EXPECT_EQ(seen.size(), 11U);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 11U);
  }
}

TEST_F(LoaderTest, BadFilesAreNamed) {
  const auto cause_of = [&](const std::string& path) {
    JobConfig job = Job(10, 2);
    job.data.train = {{path}};
    try {
      MakeTrainLoader(job, 0, 1, 256);
    } catch (const TrainerError& error) {
      EXPECT_NE(std::string(error.what()).find("data.train"), std::string::npos);
      return error.cause();
    }
    ADD_FAILURE() << path;
    return EndCause::kPeerLost;
  };
  EXPECT_EQ(cause_of((folder_ / "absent").string()), EndCause::kMissingFile);
  EXPECT_EQ(cause_of(folder_.string()), EndCause::kBadData);
  std::ofstream(folder_ / "empty").flush();
  EXPECT_EQ(cause_of((folder_ / "empty").string()), EndCause::kBadData);
  std::ofstream(folder_ / "short") << "abc";
  EXPECT_EQ(cause_of((folder_ / "short").string()), EndCause::kBadData);
  EXPECT_EQ(cause_of(Write("one", 1)), EndCause::kBadData) << "less than a global batch";
}

TEST_F(LoaderTest, AnotherCorpusIsRefusedAtResume) {
  double wait = 0;
  const auto loader = MakeTrainLoader(Job(20, 2), 0, 1, 256);
  loader->Next(&wait);
  const SamplerPosition position = loader->position();
  const auto other = MakeTrainLoader(Job(21, 2), 0, 1, 256);
  EXPECT_THROW(other->Seek(position), TrainerError);
}

TEST(PermutationTest, IsFixedForAllTime) {
  // Checkpoints hold positions in it: another order would repeat and leave out samples.
  EXPECT_EQ(SeededPermutation(8, 42, 0), SeededPermutation(8, 42, 0));
  EXPECT_NE(SeededPermutation(8, 42, 0), SeededPermutation(8, 42, 1));
  EXPECT_NE(SeededPermutation(8, 42, 0), SeededPermutation(8, 43, 0));
  EXPECT_EQ(SeededPermutation(1, 1, 1), std::vector<int64_t>{0});
}

}  // namespace
}  // namespace mp::trainer
