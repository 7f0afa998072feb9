// Batches for one rank: a strided shard of a seeded permutation of the samples, prefetched on a thread.
//
// A sample is `sequence_length` consecutive tokens of the concatenated documents, input = tokens [i*S, i*S + S), label
// = the token that follows each, -100 where there is none. Epoch e's order is a permutation from (seed, e) of the whole
// set. Rank r of w takes positions r, r + w, ... of each global batch; the incomplete last global batch of an epoch is
// dropped in training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/trainer/config/job.h"
#include "worker/trainer/model/model.h"

namespace mp::trainer {

// Where the sampler stands; the same for all ranks, so that the world size may change between runs.
struct SamplerPosition {
  int64_t epoch = 0;
  int64_t samples_consumed = 0;  // of this epoch, over all ranks
  int64_t seed = 0;
  uint64_t fingerprint = 0;  // of the data; a mismatch at resume is an error
};

class TrainLoader {
 public:
  virtual ~TrainLoader() = default;
  // The next micro-batch of this rank. Blocks until it is there; `wait_seconds` grows by the time that took.
  virtual Batch Next(double* wait_seconds) = 0;
  // Position after the last batch that Next returned.
  virtual SamplerPosition position() const = 0;
  virtual void Seek(const SamplerPosition& position) = 0;
};

// Every sample of the evaluation set once over all ranks, whatever the world size: where ranks run out, batches hold
// only -100 labels. Each rank gets the same number of batches.
class EvalLoader {
 public:
  virtual ~EvalLoader() = default;
  virtual int64_t batches() const = 0;
  virtual Batch Get(int64_t index) = 0;
};

// Throws TrainerError(kMissingFile or kBadData) naming the file and what is wrong. `vocab_size` bounds token ids.
// `pinned`: batches in pinned host memory.
std::unique_ptr<TrainLoader> MakeTrainLoader(const JobConfig& job, int rank, int world_size, int64_t vocab_size,
                                             bool pinned = false);
std::unique_ptr<EvalLoader> MakeEvalLoader(const JobConfig& job, int rank, int world_size, int64_t vocab_size);

}  // namespace mp::trainer
