// The only file that includes Gloo's headers: Debian's are older than the library inside libtorch_cpu, so nothing of
// Gloo's is constructed here but what c10d's own functions return.
#include <ATen/ops/empty.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "worker/trainer/config/error.h"
#include "worker/trainer/precision/convert.h"
#include "worker/trainer/sharding/c10d_work.h"
#include "worker/trainer/sharding/gloo.h"
#include "worker/trainer/sharding/single_rank.h"

namespace mp::trainer {
namespace {

// The address of this host from which the master is reached, as text: Gloo listens there.
std::string LocalAddressTowards(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    throw TrainerError(EndCause::kBadConfig, "MASTER_ADDR=" + host + ": " + gai_strerror(status));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    const int fd = socket(candidate->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage local = {};
    socklen_t size = sizeof(local);
    char text[NI_MAXHOST] = {};
    // Connecting a datagram socket sends nothing; it makes the kernel choose the source address.
    const bool ok =
        connect(fd, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0;
    close(fd);
    if (ok) return text;
  }
  throw TrainerError(EndCause::kPeerLost, "MASTER_ADDR=" + host + ": no route from this host");
}

class GlooCollectives : public Collectives {
 public:
  // `store` is shared by all groups of a job, `name` keeps their keys apart.
  GlooCollectives(c10::intrusive_ptr<c10d::Store> store, const std::string& name, int rank, int world_size,
                  const Rendezvous& rendezvous, std::shared_ptr<WireBytes> bytes)
      : rank_(rank), world_(world_size), store_(std::move(store)), rendezvous_(rendezvous), bytes_(std::move(bytes)) {
    OrPeerLost("the meeting of the ranks", [&] {
      auto options = c10d::ProcessGroupGloo::Options::create(rendezvous.timeout);
      const char* interface = std::getenv("GLOO_SOCKET_IFNAME");  // NOLINT(concurrency-mt-unsafe): at start
      options->devices.push_back(interface != nullptr && *interface != '\0'
                                     ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                     : c10d::ProcessGroupGloo::createDeviceForHostname(
                                           LocalAddressTowards(rendezvous.master_address, rendezvous.master_port)));
      group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store_), rank_,
                                                           world_, options);
      return 0;
    });
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_; }

  std::unique_ptr<Pending> AllGather(at::Tensor output, at::Tensor input) override {
    bytes_->all_gather[input.scalar_type()] += Others() * static_cast<int64_t>(input.nbytes());
    // As bytes: Gloo does not know every type that we move.
    at::Tensor out = output.view(at::kByte);
    at::Tensor in = input.view(at::kByte);
    auto work = OrPeerLost("all-gather", [&] { return group_->_allgather_base(out, in); });
    return std::make_unique<WorkPending>("all-gather", std::move(work), std::vector<at::Tensor>{out, in}, nullptr);
  }

  // Each rank sends every other rank the part that is the other's, and adds what it receives in the order of ranks: the
  // bytes of a ring reduce-scatter, one hop, an fp32 sum that is the same in every run, and nothing on the wire wider
  // than the input.
  std::unique_ptr<Pending> ReduceScatter(at::Tensor output, at::Tensor input) override {
    const int64_t count = output.numel();
    bytes_->reduce_scatter[input.scalar_type()] += Others() * count * static_cast<int64_t>(input.element_size());
    at::Tensor received = at::empty(input.sizes(), input.options());
    at::Tensor out = received.view(at::kByte);
    at::Tensor in = input.view(at::kByte);
    std::vector<int64_t> even;
    auto work = OrPeerLost("reduce-scatter", [&] { return group_->alltoall_base(out, in, even, even); });
    auto sum = [output, received, count, world = world_]() mutable {
      for (int64_t r = 0; r < world; ++r) {
        const at::Tensor part = ToFloatTensor(received.slice(0, r * count, (r + 1) * count));
        r == 0 ? output.copy_(part) : output.add_(part);
      }
    };
    return std::make_unique<WorkPending>("reduce-scatter", std::move(work), std::vector<at::Tensor>{out, in}, sum);
  }

  void AllReduce(at::Tensor tensor, Op op) override {
    bytes_->all_reduce[tensor.scalar_type()] += 2 * Others() * static_cast<int64_t>(tensor.nbytes()) / world_;
    c10d::AllreduceOptions options;
    options.reduceOp = op == Op::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    std::vector<at::Tensor> tensors = {tensor};
    OrPeerLost("all-reduce", [&] { return group_->allreduce(tensors, options)->wait(); });
  }

  void Barrier() override {
    OrPeerLost("barrier", [&] { return group_->barrier()->wait(); });
  }

  std::vector<std::string> AllGatherStrings(const std::string& mine) override {
    const auto options = at::TensorOptions().dtype(at::kLong);
    at::Tensor size = at::full({1}, static_cast<int64_t>(mine.size()), options);
    at::Tensor sizes = at::empty({world_}, options);
    AllGather(sizes, size)->Wait();
    const int64_t longest = std::max<int64_t>(1, sizes.max().item<int64_t>());
    at::Tensor padded = at::zeros({longest}, at::TensorOptions().dtype(at::kByte));
    std::memcpy(padded.data_ptr(), mine.data(), mine.size());
    at::Tensor all = at::empty({world_ * longest}, at::TensorOptions().dtype(at::kByte));
    AllGather(all, padded)->Wait();
    std::vector<std::string> strings;
    for (int64_t r = 0; r < world_; ++r) {
      const auto* begin = reinterpret_cast<const char*>(all.data_ptr<uint8_t>()) + r * longest;
      strings.emplace_back(begin, begin + sizes.data_ptr<int64_t>()[r]);
    }
    return strings;
  }

  std::unique_ptr<Collectives> Subgroup(const std::string& name, const std::vector<int>& ranks) override {
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    TORCH_CHECK(mine != ranks.end(), "rank ", rank_, " is not in the subgroup ", name);
    if (ranks.size() == 1) return MakeSingleRankCollectives();
    return std::make_unique<GlooCollectives>(store_, name, static_cast<int>(mine - ranks.begin()),
                                             static_cast<int>(ranks.size()), rendezvous_, bytes_);
  }

  WireBytes bytes() const override { return *bytes_; }

 private:
  int64_t Others() const { return world_ - 1; }

  int rank_;
  int world_;
  c10::intrusive_ptr<c10d::Store> store_;
  Rendezvous rendezvous_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::shared_ptr<WireBytes> bytes_;
};

c10::intrusive_ptr<c10d::Store> MeetAtStore(const Rendezvous& rendezvous) {
  return OrPeerLost("the meeting of the ranks", [&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(rendezvous.master_port);
    options.isServer = rendezvous.rank == 0;
    options.numWorkers = rendezvous.world_size;
    options.waitWorkers = true;
    options.timeout = rendezvous.timeout;
    if (rendezvous.listen_fd >= 0 && rendezvous.rank == 0) {
      options.masterListenFd = rendezvous.listen_fd;
      options.useLibUV = false;  // libuv takes over no socket that it did not make
    }
    return c10::make_intrusive<c10d::TCPStore>(rendezvous.master_address, options);
  });
}

}  // namespace

std::unique_ptr<Collectives> MakeGlooCollectives(const Rendezvous& rendezvous) {
  return std::make_unique<GlooCollectives>(MeetAtStore(rendezvous), "mp", rendezvous.rank, rendezvous.world_size,
                                           rendezvous, std::make_shared<WireBytes>());
}

}  // namespace mp::trainer
