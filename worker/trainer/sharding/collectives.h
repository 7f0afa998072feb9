// The collective operations of the trainer on one process group, with bytes counted.
//
// Errors: a peer that is gone or does not answer within the timeout is TrainerError(kPeerLost).
// Thread-safety: one thread; the returned Pending may be waited for on another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mp::trainer {

// What left this rank, in bytes, by element type of the payload, as our algorithms send it.
struct WireBytes {
  std::map<c10::ScalarType, int64_t> all_gather;
  std::map<c10::ScalarType, int64_t> reduce_scatter;
  std::map<c10::ScalarType, int64_t> all_reduce;
};

class Collectives {
 public:
  // A collective in flight.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void Wait() = 0;
  };
  enum class Op { kSum, kMax };

  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // output [world * n] receives every rank's input [n]; same dtype. Both must live until Wait.
  virtual std::unique_ptr<Pending> AllGather(at::Tensor output, at::Tensor input) = 0;
  // output fp32 [n] receives the sum over ranks of input [world * n] (any float type), accumulated in fp32. What
  // travels has input's type.
  virtual std::unique_ptr<Pending> ReduceScatter(at::Tensor output, at::Tensor input) = 0;
  // In place.
  virtual void AllReduce(at::Tensor tensor, Op op) = 0;
  virtual void Barrier() = 0;
  virtual std::vector<std::string> AllGatherStrings(const std::string& mine) = 0;
  // The collectives of some of this group's ranks, this one among them; a rank's place in `ranks` is its rank there.
  // Every rank of `ranks` calls it with the same list and with a name that no other subgroup has. Bytes sent in it
  // count in bytes() of both. Must not outlive this.
  virtual std::unique_ptr<Collectives> Subgroup(const std::string& name, const std::vector<int>& ranks) = 0;
  // After work that was enqueued without a call of this group (a recorded step): lets a watch for lost peers see that
  // the device gets through it.
  virtual void MarkProgress() {}
  virtual WireBytes bytes() const = 0;
};

}  // namespace mp::trainer
