#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace mp {
namespace {

bool Matches(const NodeSnapshot& node, const PendingJob& job) {
  if (node.node_class != job.node_class) return false;
  return std::all_of(job.labels.begin(), job.labels.end(), [&](const auto& label) {
    const auto it = node.labels.find(label.first);
    return it != node.labels.end() && it->second == label.second;
  });
}

std::string Asked(const PendingJob& job) {
  return absl::StrCat("asks for ", job.nodes, " node(s) of class ", v1::ResourceSpec::NodeClass_Name(job.node_class),
                      " with ", job.devices_per_node, " device(s) each");
}

v1::PendingReason Reason(v1::PendingReason::Code code, std::string message) {
  v1::PendingReason reason;
  reason.set_code(code);
  reason.set_message(std::move(message));
  return reason;
}

class Pass {
 public:
  explicit Pass(const Snapshot& snapshot) : snapshot_(snapshot), nodes_(snapshot.nodes) {}

  std::vector<Decision> Run() {
    std::vector<Decision> decisions;
    for (const PendingJob& job : snapshot_.pending) decisions.push_back({job.name, Decide(job)});
    return decisions;
  }

 private:
  using Result = decltype(Decision::result);

  Result Decide(const PendingJob& job) {
    std::vector<NodeSnapshot*> matching;
    int large_enough = 0;
    for (NodeSnapshot& node : nodes_) {
      if (!Matches(node, job)) continue;
      matching.push_back(&node);
      large_enough += node.devices >= job.devices_per_node ? 1 : 0;
    }
    if (snapshot_.recovering && large_enough < job.nodes) {
      return Reason(v1::PendingReason::RECOVERING,
                    absl::StrCat("the controller has restarted and waits for its workers; the job ", Asked(job)));
    }
    if (matching.empty()) return NoneMatches(job);
    if (large_enough < job.nodes) {
      return Reason(v1::PendingReason::EXCEEDS_CLUSTER,
                    absl::StrCat(Asked(job), "; of ", matching.size(), " matching node(s) ", large_enough,
                                 " have as many devices. Ask for less, or start more workers"));
    }
    if (!blocked_by_.empty()) {
      return Reason(v1::PendingReason::WAITING_FOR_DEVICES,
                    absl::StrCat("waits behind job ", blocked_by_, ", which is before it in the queue"));
    }
    std::vector<v1::Placement> placements = Place(job, matching);
    if (!placements.empty()) return placements;
    blocked_by_ = job.name;
    return Waiting(job, matching);
  }

  static v1::PendingReason NoneMatches(const PendingJob& job) {
    if (job.fp8 && job.node_class == v1::ResourceSpec::P5) {
      return Reason(v1::PendingReason::NO_FP8_CAPABLE_NODE,
                    absl::StrCat(Asked(job),
                                 "; no node of class P5 is registered, and FP8 runs on no other GPU. Start a worker on "
                                 "an H100 host, or set precision.policy to BF16 and node_class to P4"));
    }
    std::string labels;
    if (!job.labels.empty())
      labels = absl::StrCat(" and labels ", absl::StrJoin(job.labels, ",", absl::PairFormatter("=")));
    return Reason(v1::PendingReason::NO_MATCHING_NODE,
                  absl::StrCat(Asked(job), labels, "; no node like that is registered"));
  }

  v1::PendingReason Waiting(const PendingJob& job, const std::vector<NodeSnapshot*>& matching) const {
    int free = 0;
    int away = 0;
    std::set<std::string> holders;
    for (const NodeSnapshot* node : matching) {
      if (!node->ready) {
        ++away;
      } else if (static_cast<int>(node->free_devices.size()) >= job.devices_per_node) {
        ++free;
      }
      holders.insert(node->holders.begin(), node->holders.end());
    }
    std::string message =
        absl::StrCat(Asked(job), "; of ", matching.size(), " matching node(s) ", free, " have that free now");
    if (away > 0) absl::StrAppend(&message, ", ", away, " are not connected");
    if (!holders.empty()) absl::StrAppend(&message, "; devices are held by ", absl::StrJoin(holders, ", "));
    return Reason(v1::PendingReason::WAITING_FOR_DEVICES, message);
  }

  // The whole gang or nothing.
  static std::vector<v1::Placement> Place(const PendingJob& job, const std::vector<NodeSnapshot*>& matching) {
    std::vector<NodeSnapshot*> chosen;
    for (NodeSnapshot* node : matching) {
      if (node->ready && static_cast<int>(node->free_devices.size()) >= job.devices_per_node) chosen.push_back(node);
      if (static_cast<int>(chosen.size()) == job.nodes) break;
    }
    std::vector<v1::Placement> placements;
    if (static_cast<int>(chosen.size()) < job.nodes) return placements;
    for (NodeSnapshot* node : chosen) {
      v1::Placement& placement = placements.emplace_back();
      placement.set_node(node->name);
      placement.set_first_rank(static_cast<int>(placements.size() - 1) * job.devices_per_node);
      placement.set_ranks(job.devices_per_node);
      for (int i = 0; i < job.devices_per_node; ++i) placement.add_devices(node->free_devices[static_cast<size_t>(i)]);
      node->free_devices.erase(node->free_devices.begin(), node->free_devices.begin() + job.devices_per_node);
      node->holders.push_back(job.name);
    }
    return placements;
  }

  const Snapshot& snapshot_;
  std::vector<NodeSnapshot> nodes_;
  std::string blocked_by_;
};

}  // namespace

std::vector<Decision> Schedule(const Snapshot& snapshot) { return Pass(snapshot).Run(); }

}  // namespace mp
