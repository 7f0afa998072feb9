"""Submitting, refusing, queueing, cancelling, and what mpctl says about it."""

import json
import subprocess
import unittest

import specs
from cluster import BIN, Cluster


class ControlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=2).__enter__()
        cls.addClassCleanup(cls.cluster.__exit__, None, None, None)
        specs.write_corpus(cls.cluster.work)

    def test_all_violations_at_once(self):
        spec = specs.training("bad", policy="FP7")
        spec["training"].update(max_steps=-3, learning_rate="fast", no_such_field=1)
        spec["model"]["config"]["hidden_sise"] = 64
        spec["data"]["sequence_length"] = 4096
        result = self.cluster.mpctl("submit", "-f", "-", stdin=json.dumps(spec), check=False)
        self.assertEqual(result.returncode, 4)
        for path in ("precision.policy", "training.max_steps", "training.learning_rate", "training.no_such_field",
                     "model.config.hidden_sise", "data.sequence_length"):
            self.assertIn(path, result.stderr)
        self.assertEqual(self.cluster.mpctl("get", "job", "bad", check=False).returncode, 3)

    def test_fp8_on_p4_is_refused(self):
        spec = specs.training("old-gpu")
        spec["resources"]["node_class"] = "P4"
        result = self.cluster.mpctl("submit", "-f", "-", stdin=json.dumps(spec), check=False)
        self.assertEqual(result.returncode, 4)
        self.assertIn("P5", result.stderr)

    def test_missing_file_names_host_and_path(self):
        spec = specs.training("nofile")
        spec["data"]["train"] = [{"path": "absent.txt"}]
        self.cluster.submit(spec)
        job = self.cluster.wait_final("nofile", "FAILED")
        self.assertEqual(job["stop_cause"], "END_CAUSE_MISSING_FILE")
        self.assertIn(str(self.cluster.work / "absent.txt"), job["message"])
        self.assertEqual(job["attempt"], 1, "a missing file is not retried")
        node = job["attempts"][0]["placements"][0]["node"]
        self.assertIn(node.rsplit("-", 1)[0], job["message"])

    def test_jobs_queue_and_say_why(self):
        self.cluster.submit(specs.command("holder", ["sleep", "600"], nodes=2))
        self.cluster.wait_state("holder", "RUNNING")
        self.cluster.submit(specs.command("waiter", ["true"], nodes=1))
        self.cluster.submit(specs.command("giant", ["true"], nodes=64))
        waiter = self.cluster.job("waiter")
        self.assertEqual(waiter["state"], "PENDING")
        self.assertEqual(waiter["pending_reason"]["code"], "WAITING_FOR_DEVICES")
        self.assertIn("holder", waiter["pending_reason"]["message"])
        self.assertEqual(self.cluster.job("giant")["pending_reason"]["code"], "EXCEEDS_CLUSTER")
        self.cluster.submit({**specs.command("h100", ["true"]), "resources": {"node_class": "P5"}})
        self.assertIn(self.cluster.job("h100")["pending_reason"]["code"], ("NO_MATCHING_NODE", "NO_FP8_CAPABLE_NODE"))
        for name in ("giant", "h100"):
            self.cluster.mpctl("cancel", name)
            self.assertEqual(self.cluster.job(name)["state"], "CANCELLED")
        self.cluster.mpctl("cancel", "holder", "--wait")
        self.cluster.wait_final("waiter")

    def test_user_program_gets_torchrun_environment(self):
        script = 'echo "$RANK/$WORLD_SIZE/$LOCAL_RANK $MASTER_ADDR:$MASTER_PORT"; printf "\\377tail without newline"'
        self.cluster.submit(specs.command("program", ["sh", "-c", script], nodes=2))
        self.cluster.wait_final("program")
        raw = subprocess.run([BIN / "mpctl", "logs", "program", "--rank", "1"], cwd=self.cluster.work,
                             env=self.cluster.env, capture_output=True, check=True).stdout
        self.assertRegex(raw, rb"^1/2/0 [0-9.]+:[0-9]+\n\xfftail without newline$")

    def test_exit_codes(self):
        watched = self.cluster.mpctl("submit", "-f", "-", "--watch", check=False,
                                     stdin=json.dumps({**specs.command("sad", ["false"]), "restart": {"max_attempts": 1}}))
        self.assertEqual(watched.returncode, 6)
        self.assertEqual(self.cluster.mpctl("get", "job", "nobody", check=False).returncode, 3)
        self.assertEqual(self.cluster.mpctl("no-such-command", check=False).returncode, 2)
        again = self.cluster.mpctl("submit", "-f", "-", check=False, stdin=json.dumps(specs.command("sad", ["true"])))
        self.assertEqual(again.returncode, 8)
        lost = self.cluster.mpctl("--server", "127.0.0.1:1", "get", "jobs", check=False)
        self.assertEqual(lost.returncode, 5)

    def test_names_that_are_refused(self):
        for argv in (["get", "job", b"a\xff"], ["submit", "--name", b"\xff"], ["cancel", b"\xff"]):
            result = subprocess.run([BIN / "mpctl", *argv], cwd=self.cluster.work, env=self.cluster.env, capture_output=True)
            self.assertEqual(result.returncode, 2)
            self.assertIn(b"is not UTF-8", result.stderr)
        address = json.loads((self.cluster.data / "controller.json").read_text())["address"]
        node = self.cluster.mpctl_json("get", "nodes")["nodes"][0]["name"]
        for name, status in ((b"\xff", 2), ("two words", 1), (node, 1)):
            result = subprocess.run([BIN / "mp-worker", "--controller", address, "--data-dir", self.cluster.root / "misnamed",
                                     "--node-name", name], env=self.cluster.env, capture_output=True, timeout=30)
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertIn(b"--node-name" if status == 1 else b"UTF-8", result.stderr)

    def test_output_directory_belongs_to_one_job(self):
        self.cluster.submit(specs.training("owner", steps=2))
        self.cluster.wait_final("owner")
        thief = specs.training("thief", steps=2, training__output_dir="runs/../runs/owner/")
        result = self.cluster.mpctl("submit", "-f", "-", stdin=json.dumps(thief), check=False)
        self.assertEqual(result.returncode, 4)
        thief = specs.training("thief", steps=2, training__output_dir="runs/owner/")
        result = self.cluster.mpctl("submit", "-f", "-", stdin=json.dumps(thief), check=False)
        self.assertEqual(result.returncode, 4)
        self.assertIn("owner", result.stderr)

    def test_second_up_says_it_runs(self):
        before = self.cluster.processes()
        result = self.cluster.up()
        self.assertIn("running", result.stdout + result.stderr)
        self.assertEqual(self.cluster.processes(), before)


class CancelWhileStartingTest(unittest.TestCase):
    def test_cancel_at_any_moment_leaves_no_process(self):
        with Cluster(workers=2) as cluster:
            marker = str(cluster.root / "marker")
            script = f"trap '' TERM; setsid sleep 987 & echo {marker}; while :; do sleep 1; done"
            for number in range(6):
                name = f"early-{number}"
                cluster.submit(specs.command(name, ["sh", "-c", script], nodes=2))
                cluster.mpctl("cancel", name, "--wait", timeout=60)
                self.assertEqual(cluster.job(name)["state"], "CANCELLED")
                alive = [p for program in ("sleep", "sh") for p in cluster.processes(program)]
                self.assertEqual(alive, [], f"{name} left processes")


if __name__ == "__main__":
    unittest.main()
