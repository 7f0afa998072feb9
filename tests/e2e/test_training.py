"""A job from submit to summary: states, metrics of every rank, FP8 statistics, checkpoints, logs."""

import json
import unittest

import specs
from cluster import Cluster

LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


class TrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=2).__enter__()
        cls.addClassCleanup(cls.cluster.__exit__, None, None, None)
        specs.write_corpus(cls.cluster.work)

    def test_fp8_job_reports_everything(self):
        self.cluster.submit(specs.training("fp8", steps=30))
        job = self.cluster.wait_final("fp8")
        self.assertEqual(job["attempt"], 1)
        self.assertLess(job["progress"]["loss"], 0.8 * job["progress"]["first_loss"])
        for rank in (0, 1):
            scalars = self.cluster.series("fp8", rank=rank)
            for name in ("loss", "learning_rate", "grad_norm", "loss_scale", "skipped_steps", "tokens_per_second",
                         "step_seconds", "data_wait_seconds", "memory_bytes"):
                self.assertEqual(list(scalars[name, rank]), list(range(1, 31)), name)
            self.assertEqual(set(scalars["loss_scale", rank].values()), {1.0})
            tensors = self.cluster.series("fp8", "model.layers.*", rank=rank)
            wanted = {
                (f"model.layers.{layer}.{linear}/{kind}/{stat}", rank)
                for layer in (0, 1) for linear in LINEARS
                for kind in ("INPUT", "WEIGHT", "GRAD_OUTPUT")
                for stat in ("amax", "scale", "underflow_share", "overflow_share")
            }
            self.assertEqual(set(tensors), wanted)
            for (name, _), points in tensors.items():
                self.assertEqual(list(points), list(range(1, 31)), name)
                if name.endswith("/amax"):
                    self.assertTrue(all(value > 0 for value in points.values()), name)
                if name.endswith("/scale"):
                    self.assertEqual(points[1], 1.0, "the first step quantises with scale 1")
                    self.assertNotEqual(points[30], 1.0, name)
        # The amax history is reduced over ranks, so both ranks cast with the same scales.
        scale = "model.layers.0.mlp.up_proj/WEIGHT/scale"
        self.assertEqual(self.cluster.series("fp8", scale, rank=0)[scale, 0],
                         self.cluster.series("fp8", scale, rank=1)[scale, 1])
        self.assertTrue((self.cluster.work / "runs" / "fp8").is_dir())
        self.assertTrue(job["progress"]["checkpoint_path"])
        events = {e["type"] for e in self.events("fp8")}
        self.assertLessEqual({"SUBMITTED", "PLACED", "PRECISION_PLAN", "CHECKPOINT_SAVED", "EVALUATED"}, events)

    def test_every_policy_learns(self):
        for policy in ("FP32", "BF16", "FP16"):
            name = policy.lower()
            self.cluster.submit(specs.training(name, policy=policy, steps=20))
        for policy in ("FP32", "BF16", "FP16"):
            job = self.cluster.wait_final(policy.lower())
            self.assertLess(job["progress"]["loss"], 0.9 * job["progress"]["first_loss"], policy)
        scale = self.cluster.series("fp16", "loss_scale")["loss_scale", 0]
        self.assertTrue(all(value >= 1 for value in scale.values()))
        self.assertGreater(scale[1], 1.0)

    def test_resolved_spec_is_what_the_trainer_reads(self):
        """The controller's defaults and the trainer's are the same: each resolves the same short spec."""
        import subprocess

        from cluster import BIN
        spec = specs.training("resolved", policy="FP8")
        reply = self.cluster.mpctl("submit", "-f", "-", "--dry-run", "-o", "json", stdin=json.dumps(spec))
        resolved = json.loads(reply.stdout)
        path = self.cluster.work / "resolved.json"
        outputs = []
        for document in (spec, resolved):
            path.write_text(json.dumps(document))
            printed = subprocess.run([BIN / "mp-trainer", "--job", path, "--print-config"], check=True,
                                     capture_output=True, text=True).stdout
            outputs.append(json.loads(printed))
        self.assertEqual(outputs[0], outputs[1])
        for section in ("precision", "data", "training"):
            self.assertEqual(outputs[0][section], resolved[section])

    def events(self, name):
        return [record["event"] for line in self.cluster.mpctl("watch", name, "-o", "json").stdout.splitlines()
                if "event" in (record := json.loads(line))]


if __name__ == "__main__":
    unittest.main()
