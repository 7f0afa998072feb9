// The ranks of a job as torchrun's environment names them, and the collectives that join them.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "worker/trainer/sharding/collectives.h"

namespace mp::trainer {

struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  std::string master_address;  // host of rank 0; unused with one rank
  int master_port = 0;
  int listen_fd = -1;  // rank 0: a socket that listens on master_port already; -1: bind it
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // of every collective, and of the meeting
};

// From RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MP_RENDEZVOUS_FD, MP_COLLECTIVE_TIMEOUT (seconds). None set: one
// rank. Throws TrainerError(kBadConfig) naming the variable and what would be right.
Rendezvous RendezvousFromEnvironment();

// Meets the other ranks: Gloo over TCP, on the interface by which the master is reached (GLOO_SOCKET_IFNAME names
// another). With one rank no network is used. Throws TrainerError(kPeerLost) when not all ranks come within the
// timeout, TrainerError(kBadConfig) for several ranks when this build has no Gloo.
std::unique_ptr<Collectives> JoinProcessGroup(const Rendezvous& rendezvous);

}  // namespace mp::trainer
