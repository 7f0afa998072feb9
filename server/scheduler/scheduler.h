// Where gangs go: a pure function of a snapshot. First in, first out: the first job that could run but finds no room
// makes those behind it wait; a job that no registered node could ever run does not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "mp/v1/job.pb.h"

namespace mp {

struct NodeSnapshot {
  std::string name;
  v1::ResourceSpec::NodeClass node_class = v1::ResourceSpec::CPU;
  std::map<std::string, std::string> labels;
  int devices = 0;                   // in all
  std::vector<int> free_devices;     // indices, ascending
  bool ready = false;                // connected, nothing left over from before
  std::vector<std::string> holders;  // jobs that hold devices here
};

struct PendingJob {
  std::string name;
  v1::ResourceSpec::NodeClass node_class = v1::ResourceSpec::CPU;
  int nodes = 1;
  int devices_per_node = 1;
  bool fp8 = false;
  std::map<std::string, std::string> labels;
};

struct Snapshot {
  std::vector<NodeSnapshot> nodes;  // by name
  std::vector<PendingJob> pending;  // in the order of the queue
  bool recovering = false;          // leases given before a restart still run
};

struct Decision {
  std::string job;
  // The whole gang's placement, or why it waits.
  std::variant<std::vector<v1::Placement>, v1::PendingReason> result;
};

// One decision for each pending job, in order. Placements do not overlap.
std::vector<Decision> Schedule(const Snapshot& snapshot);

}  // namespace mp
