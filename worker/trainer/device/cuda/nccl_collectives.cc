#include "worker/trainer/device/cuda/nccl_collectives.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <ATen/cuda/CUDAGraphsUtils.cuh>

#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "worker/trainer/device/cuda/progress_watch.h"
#include "worker/trainer/sharding/c10d_work.h"
#include "worker/trainer/sharding/single_rank.h"

namespace mp::trainer {
namespace {

// What all groups of a job share.
struct World {
  c10::intrusive_ptr<c10d::Store> store;
  WireBytes bytes;
  ProgressWatch watch;

  World(c10::intrusive_ptr<c10d::Store> store_in, std::chrono::milliseconds timeout,
        const std::function<void(const std::string&)>& on_peer_lost)
      : store(std::move(store_in)), watch(timeout, on_peer_lost) {}
};

class NcclCollectives : public Collectives {
 public:
  // `host`: the same ranks' group for tensors on the CPU; `owned_host` keeps it where this group made it.
  NcclCollectives(std::shared_ptr<World> world, const std::string& name, Collectives* host,
                  std::unique_ptr<Collectives> owned_host)
      : world_(std::move(world)), owned_host_(std::move(owned_host)), host_(host) {
    OrPeerLost("the meeting of the ranks", [&] {
      auto options = c10d::ProcessGroupNCCL::Options::create();
      // Ours is the watch that ends the rank, see ProgressWatch.
      options->timeout = std::chrono::hours(24 * 365);
      group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
          c10::make_intrusive<c10d::PrefixStore>("nccl/" + name, world_->store), host_->rank(), host_->world_size(),
          options);
      return 0;
    });
  }

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }

  std::unique_ptr<Pending> AllGather(at::Tensor output, at::Tensor input) override {
    if (input.is_cpu()) return host_->AllGather(std::move(output), std::move(input));
    world_->bytes.all_gather[input.scalar_type()] += Others() * static_cast<int64_t>(input.nbytes());
    auto work = OrPeerLost("all-gather", [&] { return group_->_allgather_base(output, input, {}); });
    Watch("all-gather", work);
    return std::make_unique<WorkPending>("all-gather", std::move(work), std::vector<at::Tensor>{}, nullptr);
  }

  std::unique_ptr<Pending> ReduceScatter(at::Tensor output, at::Tensor input) override {
    if (input.is_cpu()) return host_->ReduceScatter(std::move(output), std::move(input));
    world_->bytes.reduce_scatter[input.scalar_type()] += Others() * static_cast<int64_t>(input.nbytes()) / world_size();
    at::Tensor sum = input.scalar_type() == output.scalar_type() ? output : at::empty(output.sizes(), input.options());
    auto work = OrPeerLost("reduce-scatter", [&] { return group_->_reduce_scatter_base(sum, input, {}); });
    Watch("reduce-scatter", work);
    std::function<void()> widen;
    if (!sum.is_same(output)) widen = [output, sum]() mutable { output.copy_(sum); };
    return std::make_unique<WorkPending>("reduce-scatter", std::move(work), std::vector<at::Tensor>{},
                                         std::move(widen));
  }

  void AllReduce(at::Tensor tensor, Op op) override {
    if (tensor.is_cpu()) return host_->AllReduce(std::move(tensor), op);
    world_->bytes.all_reduce[tensor.scalar_type()] +=
        2 * Others() * static_cast<int64_t>(tensor.nbytes()) / world_size();
    c10d::AllreduceOptions options;
    options.reduceOp = op == Op::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    std::vector<at::Tensor> tensors = {tensor};
    auto work = OrPeerLost("all-reduce", [&] { return group_->allreduce(tensors, options); });
    Watch("all-reduce", work);
    OrPeerLost("all-reduce", [&] { return work->wait(); });
  }

  void Barrier() override { host_->Barrier(); }
  std::vector<std::string> AllGatherStrings(const std::string& mine) override { return host_->AllGatherStrings(mine); }

  std::unique_ptr<Collectives> Subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (ranks.size() == 1) return MakeSingleRankCollectives();
    std::unique_ptr<Collectives> host = host_->Subgroup(name, ranks);
    Collectives* const referent = host.get();
    return std::make_unique<NcclCollectives>(world_, name, referent, std::move(host));
  }

  void MarkProgress() override {
    auto event = std::make_shared<at::cuda::CUDAEvent>();
    event->record();
    world_->watch.Add("a recorded step", [event] { return event->query(); });
  }

  WireBytes bytes() const override { return world_->bytes; }

 private:
  int64_t Others() const { return world_size() - 1; }

  // Work of a recording never runs; its replays are watched by MarkProgress.
  void Watch(const char* operation, const c10::intrusive_ptr<c10d::Work>& work) {
    if (at::cuda::currentStreamCaptureStatus() != at::cuda::CaptureStatus::None) return;
    world_->watch.Add(operation, [work] {
      const bool done = work->isCompleted();  // looks for NCCL's errors as well
      if (const std::exception_ptr error = work->exception()) std::rethrow_exception(error);
      return done;
    });
  }

  std::shared_ptr<World> world_;
  std::unique_ptr<Collectives> owned_host_;
  Collectives* host_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

std::unique_ptr<Collectives> MakeNcclCollectives(const Rendezvous& rendezvous, Collectives* host,
                                                 const std::function<void(const std::string&)>& on_peer_lost) {
  // NCCL's own watchdog would abort the process without a report. Before any group exists, hence before its threads.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);  // NOLINT(concurrency-mt-unsafe)
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);     // NOLINT(concurrency-mt-unsafe)
  auto store = OrPeerLost("the meeting of the ranks", [&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(rendezvous.master_port);
    options.isServer = false;  // rank 0 serves it already, for `host`
    options.waitWorkers = false;
    options.timeout = rendezvous.timeout;
    return c10::make_intrusive<c10d::TCPStore>(rendezvous.master_address, options);
  });
  return std::make_unique<NcclCollectives>(std::make_shared<World>(std::move(store), rendezvous.timeout, on_peer_lost),
                                           "world", host, nullptr);
}

}  // namespace mp::trainer
