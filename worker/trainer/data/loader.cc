#include "worker/trainer/data/loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "worker/trainer/config/error.h"
#include "worker/trainer/data/corpus.h"
#include "worker/trainer/data/permutation.h"

namespace mp::trainer {
namespace {

constexpr size_t kPrefetchedBatches = 4;

Batch EmptyBatch(int64_t batch_size, int64_t sequence_length, bool pinned) {
  const auto options = at::TensorOptions().dtype(at::kLong).pinned_memory(pinned);
  return {at::zeros({batch_size, sequence_length}, options), at::full({batch_size, sequence_length}, -100, options)};
}

class SampledTrainLoader : public TrainLoader {
 public:
  SampledTrainLoader(const JobConfig& job, int rank, int world_size, int64_t vocab_size, bool pinned)
      : corpus_(job.data.train, job.data.sequence_length, vocab_size, "data.train"),
        batch_size_(job.training.per_device_train_batch_size),
        rank_(rank),
        world_size_(world_size),
        pinned_(pinned) {
    if (corpus_.samples() < batch_size_ * world_size_) {
      throw TrainerError(EndCause::kBadData,
                         "data.train: " + std::to_string(corpus_.samples()) + " samples of " +
                             std::to_string(corpus_.sequence_length()) + " tokens do not fill one global batch of " +
                             std::to_string(batch_size_ * world_size_) + " (batch size " + std::to_string(batch_size_) +
                             " on " + std::to_string(world_size_) + " ranks)");
    }
    consumed_.seed = job.training.seed;
    consumed_.fingerprint = corpus_.fingerprint();
    next_ = consumed_;
    Start();
  }

  ~SampledTrainLoader() override { Stop(); }

  Batch Next(double* wait_seconds) override {
    const auto began = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || failure_; });
    if (ready_.empty()) std::rethrow_exception(failure_);
    Prepared prepared = std::move(ready_.front());
    ready_.pop_front();
    consumed_ = prepared.after;
    lock.unlock();
    changed_.notify_all();
    *wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return prepared.batch;
  }

  SamplerPosition position() const override { return consumed_; }

  void Seek(const SamplerPosition& position) override {
    if (position.fingerprint != corpus_.fingerprint()) {
      throw TrainerError(EndCause::kBadData,
                         "data.train: the files or data.sequence_length are not those of the checkpoint (fingerprint " +
                             std::to_string(corpus_.fingerprint()) + ", the checkpoint has " +
                             std::to_string(position.fingerprint) + ")");
    }
    Stop();
    consumed_ = position;
    next_ = position;
    ready_.clear();
    order_epoch_ = -1;
    Start();
  }

 private:
  struct Prepared {
    Batch batch;
    SamplerPosition after;
  };

  void Start() {
    stopping_ = false;
    thread_ = std::thread([this] { Run(); });
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void Run() {
    try {
      while (true) {
        Prepared prepared = Prepare();
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || ready_.size() < kPrefetchedBatches; });
        if (stopping_) return;
        ready_.push_back(std::move(prepared));
        lock.unlock();
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      changed_.notify_all();
    }
  }

  // On the prefetch thread alone.
  Prepared Prepare() {
    const int64_t global_batch = batch_size_ * world_size_;
    if (next_.samples_consumed + global_batch > corpus_.samples()) {
      ++next_.epoch;
      next_.samples_consumed = 0;
    }
    if (order_epoch_ != next_.epoch) {
      order_ = SeededPermutation(corpus_.samples(), next_.seed, next_.epoch);
      order_epoch_ = next_.epoch;
    }
    Prepared prepared{EmptyBatch(batch_size_, corpus_.sequence_length(), pinned_), {}};
    int64_t* input_ids = prepared.batch.input_ids.data_ptr<int64_t>();
    int64_t* labels = prepared.batch.labels.data_ptr<int64_t>();
    for (int64_t i = 0; i < batch_size_; ++i) {
      const int64_t position = next_.samples_consumed + i * world_size_ + rank_;
      const int64_t offset = i * corpus_.sequence_length();
      corpus_.Sample(order_[static_cast<size_t>(position)], input_ids + offset, labels + offset);
    }
    next_.samples_consumed += global_batch;
    prepared.after = next_;
    return prepared;
  }

  const Corpus corpus_;
  const int64_t batch_size_;
  const int64_t rank_;
  const int64_t world_size_;
  const bool pinned_;

  SamplerPosition consumed_;  // the caller's thread

  // The prefetch thread's while it runs.
  SamplerPosition next_;
  std::vector<int64_t> order_;
  int64_t order_epoch_ = -1;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Prepared> ready_;  // guarded by mutex_
  std::exception_ptr failure_;  // guarded by mutex_
  bool stopping_ = false;       // guarded by mutex_
  std::thread thread_;
};

class SequentialEvalLoader : public EvalLoader {
 public:
  SequentialEvalLoader(const JobConfig& job, int rank, int world_size, int64_t vocab_size)
      : corpus_(job.data.eval, job.data.sequence_length, vocab_size, "data.eval"),
        batch_size_(job.training.per_device_eval_batch_size),
        rank_(rank),
        world_size_(world_size) {}

  int64_t batches() const override {
    const int64_t global_batch = batch_size_ * world_size_;
    return (corpus_.samples() + global_batch - 1) / global_batch;
  }

  Batch Get(int64_t index) override {
    Batch batch = EmptyBatch(batch_size_, corpus_.sequence_length(), false);
    for (int64_t i = 0; i < batch_size_; ++i) {
      const int64_t sample = (index * batch_size_ + i) * world_size_ + rank_;
      if (sample >= corpus_.samples()) break;
      const int64_t offset = i * corpus_.sequence_length();
      corpus_.Sample(sample, batch.input_ids.data_ptr<int64_t>() + offset, batch.labels.data_ptr<int64_t>() + offset);
    }
    return batch;
  }

 private:
  const Corpus corpus_;
  const int64_t batch_size_;
  const int64_t rank_;
  const int64_t world_size_;
};

}  // namespace

std::unique_ptr<TrainLoader> MakeTrainLoader(const JobConfig& job, int rank, int world_size, int64_t vocab_size,
                                             bool pinned) {
  return std::make_unique<SampledTrainLoader>(job, rank, world_size, vocab_size, pinned);
}

std::unique_ptr<EvalLoader> MakeEvalLoader(const JobConfig& job, int rank, int world_size, int64_t vocab_size) {
  return std::make_unique<SequentialEvalLoader>(job, rank, world_size, vocab_size);
}

}  // namespace mp::trainer
