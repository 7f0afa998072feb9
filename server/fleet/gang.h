// The running attempt of a job, as far as memory alone holds it. What is durable is in the job and its attempt.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "mp/v1/worker_service.pb.h"

namespace mp {

struct Gang {
  struct Member {
    v1::Placement placement;
    bool prepared = false;
    bool ended = false;  // every process there is reaped, or the node's lease has run out
  };

  v1::AttemptId id;
  std::map<std::string, Member> members;  // by node
  int world_size = 0;
  bool built_in = true;  // the built-in trainer: its ranks send Started
  std::string rendezvous_address;
  int rendezvous_port = 0;
  bool launched = false;
  std::set<int> started;                                     // ranks
  std::set<int> exited;                                      // ranks
  absl::Duration start_deadline = absl::InfiniteDuration();  // monotonic
  // Why it is to end, the cause nearest to the root so far; unspecified: it goes on.
  v1::EndCause cause = v1::END_CAUSE_UNSPECIFIED;
  std::string message;

  bool Holds(const std::string& node, int rank) const {
    const auto it = members.find(node);
    if (it == members.end()) return false;
    const int first = it->second.placement.first_rank();
    return rank >= first && rank < first + it->second.placement.ranks();
  }
  bool AllPrepared() const {
    for (const auto& [node, member] : members) {
      if (!member.prepared) return false;
    }
    return true;
  }
  bool AllEnded() const {
    for (const auto& [node, member] : members) {
      if (!member.ended) return false;
    }
    return true;
  }
};

}  // namespace mp
