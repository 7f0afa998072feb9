// A seeded storm over the coordinator and its real store: submits, cancels, deaths, lost connections, restarts of
// workers and of the controller, late messages. After each step the invariants are checked. A failing seed is printed
// and replays exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include "server/job/state_machine.h"
#include "tests/unit/fleet/fake_cluster.h"

namespace mp {
namespace {

using M = v1::ControllerMessage;

class Storm {
 public:
  explicit Storm(uint32_t seed) : random_(seed) {
    for (int i = 0; i < kNodes; ++i) Boot(i);
  }

  void Step() {
    const int action = Pick(100);
    if (action < 12) {
      Submit();
    } else if (action < 16) {
      Cancel();
    } else if (action < 70) {
      Work();
    } else if (action < 78) {
      Die();
    } else if (action < 82) {
      Drop();
    } else if (action < 84) {
      Boot(Pick(kNodes));
    } else if (action < 85) {
      cluster_.RestartController();
      for (Node& node : nodes_) node.session = nullptr;
    } else if (action < 92) {
      Reconnect();
    } else {
      cluster_.Advance(absl::Seconds(Pick(20)));
      for (Node& node : nodes_) {
        if (node.session != nullptr && !node.session->is_closed && Pick(10) > 0) cluster_.Heartbeat(node.session);
      }
    }
    Check();
  }

  int submitted() const { return submitted_; }
  int finished() const { return static_cast<int>(final_.size()); }

  // Everything still there is let run to its end.
  void Settle() {
    for (int i = 0; i < 4000; ++i) {
      for (int n = 0; n < kNodes; ++n) {
        if (nodes_[static_cast<size_t>(n)].session == nullptr || nodes_[static_cast<size_t>(n)].session->is_closed)
          ReconnectNode(n);
      }
      Work();
      if (i % 50 == 0) {
        cluster_.Advance(absl::Seconds(5));
        for (Node& node : nodes_) cluster_.Heartbeat(node.session);
      }
    }
    Check();
  }

 private:
  static constexpr int kNodes = 4;

  // What a worker really runs.
  struct Held {
    v1::AttemptId id;
    int first_rank = 0;
    int ranks = 0;
    bool launched = false;
    bool stopping = false;
    std::set<int> exited;
  };
  struct Node {
    std::string name;
    int instance = 0;
    std::shared_ptr<FakeWorker> session;
    size_t read = 0;
    std::map<std::pair<std::string, int>, Held> held;
  };

  int Pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  void Boot(int index) {
    if (static_cast<int>(nodes_.size()) <= index) nodes_.resize(static_cast<size_t>(index) + 1);
    Node& node = nodes_[static_cast<size_t>(index)];
    node.name = "n" + std::to_string(index);
    if (node.session != nullptr) cluster_.coordinator().Disconnected(node.session);
    ++node.instance;
    node.held.clear();  // its ranks died with it
    node.session = nullptr;
    ReconnectNode(index);
  }

  void ReconnectNode(int index) {
    Node& node = nodes_[static_cast<size_t>(index)];
    std::vector<v1::HeldAttempt> held;
    for (const auto& [key, attempt] : node.held) {
      v1::HeldAttempt& message = held.emplace_back();
      *message.mutable_id() = attempt.id;
      message.set_launched(attempt.launched);
      for (int rank = attempt.first_rank; rank < attempt.first_rank + attempt.ranks && attempt.launched; ++rank) {
        auto* state = message.add_ranks();
        state->set_rank(rank);
        state->set_pid(1);
      }
    }
    auto session = std::make_shared<FakeWorker>();
    if (!cluster_.TryConnect(session, node.name, std::to_string(node.instance), held, 2).ok()) return;
    node.session = session;
    node.read = 0;
    // As the worker does: what is not kept is ended.
    std::set<std::pair<std::string, int>> keep;
    for (const v1::AttemptId& id : session->Last(M::kRegistered)->registered().keep())
      keep.insert({id.job_uid(), id.attempt()});
    std::vector<v1::AttemptId> ended;
    for (auto it = node.held.begin(); it != node.held.end();) {
      if (keep.contains(it->first)) {
        ++it;
        continue;
      }
      ended.push_back(it->second.id);
      it = node.held.erase(it);
    }
    for (const v1::AttemptId& id : ended) cluster_.AttemptEnded(session, id);
  }

  void Submit() {
    if (cluster_
            .Submit("job-" + std::to_string(submitted_), 1 + Pick(kNodes),
                    Pick(2) == 0 ? "restart: {max_attempts: 2}" : "")
            .ok())
      ++submitted_;
  }

  void Cancel() {
    if (submitted_ == 0) return;
    v1::CancelJobRequest request;
    request.set_name("job-" + std::to_string(Pick(submitted_)));
    cluster_.coordinator().CancelJob(request).status().IgnoreError();
  }

  // One node reads a message or lets one of its ranks go on.
  void Work() {
    Node& node = nodes_[static_cast<size_t>(Pick(kNodes))];
    if (node.session == nullptr || node.session->is_closed) return;
    if (node.read < node.session->inbox.size()) return Read(&node);
    if (node.held.empty()) return;
    auto it = node.held.begin();
    std::advance(it, Pick(static_cast<int>(node.held.size())));
    Held& held = it->second;
    if (held.stopping || (held.launched && static_cast<int>(held.exited.size()) == held.ranks)) {
      const v1::AttemptId id = held.id;
      node.held.erase(it);
      return cluster_.AttemptEnded(node.session, id);
    }
    if (!held.launched || Pick(4) > 0) return;
    const int rank = held.first_rank + static_cast<int>(held.exited.size());
    held.exited.insert(rank);
    cluster_.RankExited(node.session, held.id, rank, v1::END_CAUSE_SUCCEEDED);
  }

  void Read(Node* node) {
    const M message = node->session->inbox[node->read++];
    const auto key = [](const v1::AttemptId& id) { return std::pair(id.job_uid(), id.attempt()); };
    if (message.has_prepare_attempt()) {
      const auto& prepare = message.prepare_attempt();
      Held& held = node->held[key(prepare.id())];
      held.id = prepare.id();
      held.first_rank = prepare.placement().first_rank();
      held.ranks = prepare.placement().ranks();
      cluster_.Prepared(node->session, prepare.id(), prepare.hosts_rendezvous(), Pick(40) == 0 ? "gone" : "");
    } else if (message.has_launch_attempt()) {
      const auto it = node->held.find(key(message.launch_attempt().id()));
      if (it == node->held.end() || it->second.launched || it->second.stopping) return;
      it->second.launched = true;
      Launched(it->second.id);
      for (int rank = it->second.first_rank; rank < it->second.first_rank + it->second.ranks; ++rank)
        cluster_.RankStarted(node->session, it->second.id, rank);
    } else if (message.has_stop_attempt()) {
      const auto it = node->held.find(key(message.stop_attempt().id()));
      if (it != node->held.end()) {
        it->second.stopping = true;
      } else {
        cluster_.AttemptEnded(node->session, message.stop_attempt().id());
      }
    }
  }

  // A launch of an attempt when a higher one of the same job was launched already would be a job run twice.
  void Launched(const v1::AttemptId& id) {
    int& highest = highest_launched_[id.job_uid()];
    EXPECT_GE(id.attempt(), highest) << "attempt " << id.attempt() << " of " << id.job() << " starts after " << highest;
    highest = std::max(highest, id.attempt());
  }

  void Die() {
    Node& node = nodes_[static_cast<size_t>(Pick(kNodes))];
    if (node.session == nullptr || node.session->is_closed) return;
    for (auto& [key, held] : node.held) {
      if (!held.launched || static_cast<int>(held.exited.size()) == held.ranks) continue;
      const int rank = held.first_rank + static_cast<int>(held.exited.size());
      held.exited.insert(rank);
      return cluster_.RankExited(node.session, held.id, rank,
                                 Pick(2) == 0 ? v1::END_CAUSE_RANK_DIED : v1::END_CAUSE_PEER_LOST);
    }
  }

  void Drop() {
    Node& node = nodes_[static_cast<size_t>(Pick(kNodes))];
    if (node.session == nullptr) return;
    cluster_.coordinator().Disconnected(node.session);
    node.session = nullptr;
  }

  void Reconnect() {
    const int index = Pick(kNodes);
    Node& node = nodes_[static_cast<size_t>(index)];
    if (node.session == nullptr || node.session->is_closed) {
      // A worker that slept past its lease has killed its ranks.
      if (node.session != nullptr && node.session->is_closed) node.held.clear();
      ReconnectNode(index);
    }
  }

  void Check() {
    std::map<std::pair<std::string, int>, std::string> holders;  // (node, device) -> job
    for (const v1::Job& job : cluster_.coordinator().AllJobs()) {
      // A final state is final.
      const auto before = final_.find(job.name());
      if (before != final_.end()) {
        ASSERT_EQ(before->second, job.state()) << job.name();
      }
      if (IsFinal(job.state())) final_[job.name()] = job.state();
      const bool has_ranks =
          job.state() == v1::Job::STARTING || job.state() == v1::Job::RUNNING || job.state() == v1::Job::STOPPING;
      if (!has_ranks) continue;
      // No half gang, no device held twice.
      const v1::Attempt& attempt = *job.attempts().rbegin();
      ASSERT_EQ(attempt.placements_size(), job.spec().resources().nodes()) << job.name();
      for (const v1::Placement& placement : attempt.placements()) {
        for (const int device : placement.devices()) {
          const auto [it, is_new] = holders.try_emplace({placement.node(), device}, job.name());
          ASSERT_TRUE(is_new) << placement.node() << " device " << device << " is held by " << it->second << " and "
                              << job.name();
        }
      }
    }
  }

  std::mt19937 random_;
  FakeCluster cluster_;
  std::vector<Node> nodes_;
  int submitted_ = 0;
  std::map<std::string, v1::Job::State> final_;
  std::map<std::string, int> highest_launched_;
};

TEST(CoordinatorSimulationTest, InvariantsHoldThroughTheStorm) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Storm storm(seed);
    for (int i = 0; i < 600 && !testing::Test::HasFailure(); ++i) storm.Step();
    storm.Settle();
    EXPECT_GT(storm.submitted(), 20);
    EXPECT_EQ(storm.finished(), storm.submitted()) << "no job is lost";
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace mp
