"""mp-trainer alone: ranks started by hand, no controller."""

import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

import specs
from cluster import BIN
from ranks import RankTestCase

# How far the loss curves of one and two ranks may lie apart: in fp32 only the order of sums differs; in the half types each gradient is
# rounded once a rank more, which training amplifies.
CURVE_TOLERANCE = {"FP32": 1e-5, "BF16": 2e-2, "FP16": 5e-3, "FP8": 3e-2}
BYTES = {"Float": 4, "BFloat16": 2, "Half": 2}


class TrainerTest(RankTestCase):
    def test_two_ranks_reproduce_one(self):
        for policy, tolerance in CURVE_TOLERANCE.items():
            with self.subTest(policy=policy):
                one = specs.training(f"one-{policy.lower()}", policy=policy, steps=50, training__per_device_train_batch_size=8)
                two = specs.training(f"two-{policy.lower()}", policy=policy, steps=50, training__per_device_train_batch_size=4)
                a = self.losses(self.run_ranks(one, 1)[0])
                ranks = self.run_ranks(two, 2)
                b = self.losses(ranks[0])
                self.assertEqual(b, self.losses(ranks[1]), "all ranks report the same loss")
                self.assertEqual(len(a), 50)
                worst = max(abs(a[s] - b[s]) / a[s] for s in a)
                self.assertLessEqual(worst, tolerance)

    def test_accumulation_is_a_larger_batch(self):
        whole = specs.training("whole", policy="FP32", steps=20, training__per_device_train_batch_size=8)
        parts = specs.training("parts", policy="FP32", steps=20, training__per_device_train_batch_size=2,
                               training__gradient_accumulation_steps=4)
        a = self.losses(self.run_ranks(whole, 1)[0])
        b = self.losses(self.run_ranks(parts, 1)[0])
        self.assertLessEqual(max(abs(a[s] - b[s]) / a[s] for s in a), 1e-5)

    def test_three_ranks_train(self):
        events = self.run_ranks(specs.training("three", policy="FP8", steps=6), 3)
        self.assertEqual(len(self.losses(events[2])), 6)

    def test_wire_types(self):
        """Gathers travel in param_dtype, scatters in reduce_dtype, nothing wider but the few numbers of all-reduces."""
        for policy, reduce_dtype, gather, scatter in (("FP32", "FP32", "Float", "Float"), ("BF16", "BF16", "BFloat16", "BFloat16"),
                                                      ("BF16", "FP32", "BFloat16", "Float"), ("FP16", "FP16", "Half", "Half"),
                                                      ("FP8", "BF16", "BFloat16", "BFloat16")):
            with self.subTest(policy=policy, reduce_dtype=reduce_dtype):
                spec = specs.training(f"wire-{policy.lower()}-{reduce_dtype.lower()}", policy=policy, steps=4, training__eval_strategy="NO",
                                      training__save_steps=0, precision__reduce_dtype=reduce_dtype)
                events = self.run_ranks(spec, 2)[0]
                metrics = next(e["finished"]["metrics"] for e in events if "finished" in e)
                wire = {k[len("wire_bytes_"):]: v for k, v in metrics.items() if k.startswith("wire_bytes_")}
                parameters = next(int(e["started"]["parameters"]) for e in events if "started" in e)
                gathered = wire.pop(f"all_gather_{gather}")
                scattered = wire.pop(f"reduce_scatter_{scatter}")
                # Each step gathers every stage twice, the last one once, and scatters it once; each rank sends half to the other.
                self.assertLess(gathered, 1.1 * 4 * 2 * parameters / 2 * BYTES[gather])
                self.assertGreater(gathered, 4 * parameters / 2 * BYTES[gather])
                self.assertAlmostEqual(scattered / (4 * parameters / 2 * BYTES[scatter]), 1, delta=0.05)
                # What is left is counts, norms and amaxes, and the strings that a checkpoint gathers.
                self.assertLess(sum(wire.values()), 20000, wire)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip"), "SKIPPED: needs root, unshare and ip for a network of its own")
    def test_wire_bytes_on_the_interface(self):
        """The counters are true: the loopback of a private network carries as much, and a few headers."""
        script = r"""
import json, pathlib, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
sent = lambda: int(next(l for l in open("/proc/net/dev") if "lo:" in l).split(":")[1].split()[8])
before = sent()
ranks = []
for rank in (0, 1):
    env = {"PATH": "/usr/bin:/bin", "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    ranks.append(subprocess.Popen([sys.argv[1], "--job", "wire.json"], env=env, stdout=open(f"wire-{rank}.out", "w"), stderr=subprocess.DEVNULL))
assert all(p.wait(timeout=100) == 0 for p in ranks)
print(sent() - before)
"""
        spec = specs.training("wire", policy="BF16", steps=40, training__eval_strategy="NO", training__save_steps=0)
        (self.folder / "wire.json").write_text(json.dumps(spec))
        result = subprocess.run(["unshare", "--net", sys.executable, "-c", script, BIN / "mp-trainer"], cwd=self.folder, capture_output=True, text=True)
        if "Operation not permitted" in result.stderr:
            self.skipTest("SKIPPED: a private network is not permitted here")
        self.assertEqual(result.returncode, 0, result.stderr)
        events = [json.loads(line) for line in (self.folder / "wire-0.out").read_text().splitlines()]
        metrics = next(e["finished"]["metrics"] for e in events if "finished" in e)
        counted = 2 * sum(v for k, v in metrics.items() if k.startswith("wire_bytes_"))
        measured = int(result.stdout)
        self.assertGreaterEqual(measured, counted)
        self.assertLess(measured, 1.1 * counted + 500_000)

    def test_a_peer_that_dies_ends_the_others(self):
        ranks = self.start(specs.training("peers", policy="BF16", steps=100000), 2, env={"MP_COLLECTIVE_TIMEOUT": "20"}.items())
        self.wait_for_step(ranks[0], 3)
        ranks[1][0].send_signal(signal.SIGKILL)
        self.assertEqual(ranks[0][0].wait(timeout=25), 12)
        failed = self.events(ranks[0])[-1]["failed"]
        self.assertEqual(failed["cause"], "END_CAUSE_PEER_LOST")
        self.assertGreater(int(failed["step"]), 2)

    def test_a_peer_that_hangs_is_given_up(self):
        ranks = self.start(specs.training("hang", policy="BF16", steps=100000), 2, env={"MP_COLLECTIVE_TIMEOUT": "3"}.items())
        self.wait_for_step(ranks[0], 3)
        ranks[1][0].send_signal(signal.SIGSTOP)
        self.assertEqual(ranks[0][0].wait(timeout=15), 12)

    def wait_for_step(self, rank, step):
        import time
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            rank[1].seek(0)
            if rank[1].read().count('"frame"') >= step:
                return
            time.sleep(0.05)
        self.fail("the ranks did not start")

    def test_bad_jobs_say_why(self):
        spec = specs.training("bad", steps=5)
        spec["training"]["max_steps"] = -1
        spec["surprise"] = 1
        ranks = self.start(spec, 1)
        self.assertEqual(ranks[0][0].wait(timeout=30), 14)
        failed = self.events(ranks[0])[-1]["failed"]
        self.assertEqual(failed["cause"], "END_CAUSE_BAD_CONFIG")
        self.assertIn("training.max_steps", failed["message"])
        self.assertIn("surprise", failed["message"])
        spec = specs.training("gone", steps=5, data__train=[{"path": "gone.txt"}])
        self.assertEqual(self.start(spec, 1)[0][0].wait(timeout=30), 15)

    def test_out_of_memory_says_where_and_how_much(self):
        import resource
        limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (900 << 20, 900 << 20))
        for phase, changes in (("initialisation", {"hidden_size": 2048, "num_hidden_layers": 8}), ("(forward|backward) of step", {"hidden_size": 256})):
            with self.subTest(phase=phase):
                spec = specs.training(f"oom-{changes['hidden_size']}", policy="FP32", steps=5, training__eval_strategy="NO")
                spec["model"]["config"].update(changes)
                spec["training"]["per_device_train_batch_size"] = 900
                rank = self.start(spec, 1, preexec_fn=limit)[0]
                self.assertEqual(rank[0].wait(timeout=60), 10)
                failed = self.events(rank)[-1]["failed"]
                self.assertEqual(failed["cause"], "END_CAUSE_OUT_OF_MEMORY")
                self.assertRegex(failed["message"], rf"out of memory in {phase}.*: you tried to allocate \d+ bytes; this rank holds \d+ MiB")

    def test_divergence_is_its_own_cause(self):
        spec = specs.training("nan", policy="FP32", steps=50, training__learning_rate=1e30, training__max_grad_norm=0, training__warmup_steps=0)
        ranks = self.start(spec, 1)
        self.assertEqual(ranks[0][0].wait(timeout=30), 11)
        self.assertEqual(self.events(ranks[0])[-1]["failed"]["cause"], "END_CAUSE_NON_FINITE")

    def test_fp16_skips_and_recovers(self):
        spec = specs.training("skip", policy="FP16", steps=30, precision__loss_scale={"mode": "DYNAMIC", "init_scale": 2.0**40, "growth_interval": 5})
        frames = [e["frame"]["scalars"] for e in self.run_ranks(spec, 2)[0] if "frame" in e]
        self.assertGreater(frames[-1]["skipped_steps"], 5)
        self.assertLess(frames[-1]["loss_scale"], 2.0**40)
        self.assertLess(frames[-1]["loss"], frames[0]["loss"])
        skipped = int(frames[9]["skipped_steps"])
        self.assertEqual(skipped, 10, "each early step halves the scale and changes nothing")
        self.assertEqual(frames[9]["learning_rate"], frames[0]["learning_rate"], "the schedule waits for applied updates")


if __name__ == "__main__":
    unittest.main()
