"""A real Prometheus scrapes the controller during a job: promtool accepts /metrics, and every query of the dashboard returns data."""

import json
import pathlib
import re
import shutil
import socket
import subprocess
import time
import unittest
import urllib.parse
import urllib.request

import specs
from cluster import Cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@unittest.skipUnless(shutil.which("prometheus") and shutil.which("promtool"), "SKIPPED: Debian's package prometheus is not installed")
class PrometheusTest(unittest.TestCase):
    def test_every_query_of_the_dashboard_returns_data(self):
        with Cluster(workers=2) as cluster:
            specs.write_corpus(cluster.work)
            status = cluster.mpctl("dev", "status").stdout
            metrics = re.search(r"http://([0-9.]+:[0-9]+)/metrics", status).group(1)
            port = free_port()
            # Our own configuration, with this cluster's address and a shorter interval.
            config = (ROOT / "deploy/prometheus/prometheus.yml").read_text().replace("127.0.0.1:9464", metrics).replace("5s", "1s")
            (cluster.root / "prometheus.yml").write_text(config)
            subprocess.run(["promtool", "check", "config", cluster.root / "prometheus.yml"], check=True, capture_output=True)
            log = open(cluster.root / "prometheus.log", "w")
            self.addCleanup(log.close)
            server = subprocess.Popen(["prometheus", f"--config.file={cluster.root}/prometheus.yml", f"--storage.tsdb.path={cluster.root}/tsdb",
                                       f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
            try:
                cluster.submit(specs.training("watched", steps=100000, training__eval_steps=20, training__save_steps=20))
                cluster.wait_step("watched", 45)
                page = urllib.request.urlopen(f"http://{metrics}/metrics").read()
                checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
                self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, b"", b""))
                dashboard = json.loads((ROOT / "deploy/grafana/training.json").read_text())
                missing = {t["expr"].replace("$job", "watched") for p in dashboard["panels"] for t in p["targets"]}
                self.assertGreater(len(missing), 15)
                deadline = time.monotonic() + 60
                while missing and time.monotonic() < deadline:
                    missing = {expression for expression in missing if not self.has_data(port, expression)}
                    time.sleep(0.5)  # between two scrapes; Prometheus has no event to wait for
                self.assertEqual(missing, set())
                # The job's own name is its label, not exported_job.
                self.assertTrue(self.has_data(port, 'mp_job_loss{job="watched"}'))
                cluster.mpctl("cancel", "watched", "--wait")
            finally:
                server.terminate()
                server.wait(timeout=20)

    @staticmethod
    def has_data(port, expression):
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            reply = json.load(urllib.request.urlopen(url, timeout=5))
        except OSError:
            return False
        return reply["status"] == "success" and len(reply["data"]["result"]) > 0


if __name__ == "__main__":
    unittest.main()
