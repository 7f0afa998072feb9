"""kill -9 of each kind of process, and cancel + resubmit: the job's numbers end as those of an undisturbed run."""

import contextlib
import os
import pathlib
import signal
import time
import unittest

import specs
from cluster import Cluster

LONG = os.environ.get("MP_TEST_LONG") == "true"
POLICIES = ("FP32", "BF16", "FP16", "FP8")
STEPS = 60


def wait_gone(pids, seconds):
    """Until none of pids exists; a process that is only waiting to be reaped counts as gone."""
    deadline = time.monotonic() + seconds
    left = set(pids)
    while left and time.monotonic() < deadline:
        for pid in list(left):
            with contextlib.suppress(ProcessLookupError):
                with contextlib.suppress(FileNotFoundError, IndexError):
                    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
                    if state not in "ZX":
                        continue
            left.discard(pid)
        time.sleep(0.02)
    return left


class RecoveryTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(workers=2, up_args=["--lease", "10s"])
        self.cluster.__enter__()
        self.addCleanup(self.cluster.__exit__, None, None, None)
        specs.write_corpus(self.cluster.work)

    def losses(self, name):
        return self.cluster.series(name, "loss")["loss", 0]

    def undisturbed(self, policy):
        name = f"whole-{policy.lower()}"
        self.cluster.submit(specs.training(name, policy=policy, steps=STEPS))
        self.cluster.wait_final(name)
        return self.losses(name)

    def test_rank_killed(self):
        for policy in POLICIES:
            with self.subTest(policy=policy):
                whole = self.undisturbed(policy)
                name = f"killed-{policy.lower()}"
                self.cluster.submit(specs.training(name, policy=policy, steps=STEPS))
                self.cluster.wait_step(name, 12)
                ranks = self.cluster.rank_pids()
                self.assertEqual(set(ranks), {0, 1})
                self.cluster.kill(ranks[1])
                self.assertEqual(wait_gone(ranks.values(), 10), set(), "the attempt must end on all nodes within 10 s")
                job = self.cluster.wait_final(name)
                self.assertEqual(job["attempt"], 2)
                self.assertEqual(job["attempts"][0]["cause"], "END_CAUSE_RANK_DIED")
                self.assertEqual(self.losses(name), whole, "bit-identical after the restart")

    def test_retry_budget(self):
        spec = specs.training("doomed", steps=400)
        spec["restart"] = {"max_attempts": 2}
        self.cluster.submit(spec)
        for attempt in (1, 2):
            self.cluster.wait_step("doomed", 1, attempt=attempt)
            self.cluster.kill(self.cluster.rank_pids()[0])
        job = self.cluster.wait_final("doomed", "FAILED")
        self.assertEqual(job["attempt"], 2)
        self.assertEqual(job["stop_cause"], "END_CAUSE_RANK_DIED")

    def test_controller_killed(self):
        self.cluster.submit(specs.training("steady", steps=STEPS * 2))
        self.cluster.wait_step("steady", 10)
        ranks = self.cluster.rank_pids()
        self.cluster.kill(self.cluster.controller_pid())
        self.cluster.up()  # starts what is missing on the same data and ports
        self.assertEqual(self.cluster.rank_pids(), ranks, "the ranks were not touched")
        job = self.cluster.wait_final("steady")
        self.assertEqual(job["attempt"], 1)
        for rank in (0, 1):
            loss = self.cluster.series("steady", "loss", rank=rank)["loss", rank]
            self.assertEqual(list(loss), list(range(1, STEPS * 2 + 1)), "no frame lost")

    def test_worker_killed(self):
        whole = self.undisturbed("FP8")
        self.cluster.submit(specs.training("orphaned", steps=STEPS))
        self.cluster.wait_step("orphaned", 12)
        ranks = self.cluster.rank_pids()
        victim = self.cluster.worker_pids()[1]
        self.cluster.kill(victim)
        self.assertEqual(wait_gone(ranks.values(), 20), set())
        self.cluster.wait_event("orphaned", lambda e: e["type"] == "STATE_CHANGED" and e["state"] == "PENDING"
                                and e.get("attempt", 0) == 1, timeout=60)
        self.cluster.up()
        job = self.cluster.wait_final("orphaned")
        self.assertEqual(job["attempts"][0]["cause"], "END_CAUSE_WORKER_LOST")
        self.assertEqual(self.losses("orphaned"), whole)

    def test_cancel_and_resubmit(self):
        for policy in POLICIES if LONG else ("FP16", "FP8"):
            with self.subTest(policy=policy):
                whole = self.undisturbed(policy)
                name = f"first-{policy.lower()}"
                self.cluster.submit(specs.training(name, policy=policy, steps=STEPS))
                self.cluster.wait_step(name, 12)
                pids = list(self.cluster.rank_pids().values())
                self.cluster.mpctl("cancel", name, "--wait")
                self.assertEqual(wait_gone(pids, 0.1), set(), "CANCELLED only when every process has ended")
                self.assertEqual(self.cluster.job(name)["state"], "CANCELLED")
                again = specs.training(f"second-{policy.lower()}", policy=policy, steps=STEPS,
                                       training__output_dir=f"runs/{name}", training__resume_from_checkpoint="latest")
                self.cluster.submit(again)
                self.cluster.wait_final(again["name"])
                resumed = self.losses(again["name"])
                self.assertGreater(min(resumed), 1)
                self.assertEqual(resumed, {step: whole[step] for step in resumed})

    def test_damaged_newest_checkpoint(self):
        whole = self.undisturbed("FP8")
        self.cluster.submit(specs.training("hurt", steps=STEPS))
        self.cluster.wait_step("hurt", 23)
        self.cluster.mpctl("cancel", "hurt", "--wait")
        checkpoints = sorted(p for p in (self.cluster.work / "runs" / "hurt").iterdir() if p.name.startswith("step-"))
        self.assertGreaterEqual(len(checkpoints), 2)
        victim = max(checkpoints[-1].iterdir(), key=lambda p: p.stat().st_size)
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
        self.cluster.submit(specs.training("healed", steps=STEPS, training__output_dir="runs/hurt",
                                           training__resume_from_checkpoint="latest"))
        damaged = self.cluster.wait_event("healed", lambda e: e["type"] == "CHECKPOINT_DAMAGED")
        self.assertIn(checkpoints[-1].name, damaged["message"])
        self.cluster.wait_final("healed")
        resumed = self.losses("healed")
        self.assertEqual(resumed, {step: whole[step] for step in resumed})


if __name__ == "__main__":
    unittest.main()
