"""Node classes. They are declared by the workers: the placement is the controller's and asks no GPU."""

import contextlib
import json
import signal
import subprocess
import unittest

import specs
from cluster import BIN, Cluster


@contextlib.contextmanager
def declared_worker(cluster, name, node_class, devices=1):
    address = json.loads((cluster.data / "controller.json").read_text())["address"]
    with open(cluster.root / f"{name}.log", "w") as log:
        process = subprocess.Popen(
            [BIN / "mp-worker", "--controller", address, "--data-dir", cluster.root / name, "--node-name", name,
             "--address", "127.0.0.1", "--declare-class", node_class, "--devices", str(devices)],
            env=cluster.env, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def of_class(node_class, spec, **resources):
    return {**spec, "resources": {"nodes": 1, **resources, "node_class": node_class}}


class PlacementTest(unittest.TestCase):
    def nodes_of(self, job):
        return [p["node"] for a in job.get("attempts", []) for p in a["placements"]]

    def test_fp8_waits_for_a_p5_node(self):
        with Cluster(workers=1) as cluster, declared_worker(cluster, "a100", "P4"):
            specs.write_corpus(cluster.work)
            cluster.submit(of_class("P4", specs.command("half", ["true"])))
            self.assertEqual(self.nodes_of(cluster.wait_final("half")), ["a100"])  # and it is free again
            cluster.submit(of_class("P5", specs.training("fp8")))
            job = cluster.job("fp8")
            self.assertEqual(job["state"], "PENDING")
            self.assertEqual(job["pending_reason"]["code"], "NO_FP8_CAPABLE_NODE")
            self.assertIn("H100", job["pending_reason"]["message"])
            # It holds up nobody, and whoever runs meanwhile does not bring it onto the other class.
            cluster.submit(of_class("P4", specs.command("behind", ["true"])))
            cluster.wait_final("behind")
            self.assertEqual(cluster.job("fp8")["state"], "PENDING")
            with declared_worker(cluster, "h100", "P5"):
                # The node has no GPU, so the job ends there; on no other node, and with the reason.
                job = cluster.wait_final("fp8", "FAILED")
                self.assertEqual(self.nodes_of(job), ["h100"])
                self.assertEqual(job["stop_cause"], "END_CAUSE_BAD_CONFIG")
                self.assertIn("CUDA", job["message"])

    def test_a_gang_is_of_one_class_and_whole(self):
        with Cluster(workers=1) as cluster:
            with declared_worker(cluster, "p5-a", "P5", devices=2), declared_worker(cluster, "p4-a", "P4", devices=2):
                for name, node_class in (("warm-p5", "P5"), ("warm-p4", "P4")):
                    cluster.submit(of_class(node_class, specs.command(name, ["true"])))
                    cluster.wait_final(name)
                cluster.submit(of_class("P5", specs.command("pair", ["true"]), nodes=2, devices_per_node=2))
                self.assertEqual(cluster.job("pair")["state"], "PENDING")
                with declared_worker(cluster, "p5-b", "P5", devices=1), declared_worker(cluster, "p5-c", "P5", devices=2):
                    self.assertEqual(sorted(self.nodes_of(cluster.wait_final("pair"))), ["p5-a", "p5-c"])


if __name__ == "__main__":
    unittest.main()
