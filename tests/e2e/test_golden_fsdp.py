"""Our engine against PyTorch FSDP2 + Transformers: loss curves and gradient norms of the runs in tests/golden/fsdp_cases.py.

tests/golden/fsdp.json holds PyTorch's, with tests/golden/generate_fsdp.py. Where the peer is installed (MP_TEST_LONG=true and
.deps/peer), they are made anew and compared live.
"""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import unittest

from cluster import BIN
from ranks import RankTestCase

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))
import fsdp_cases  # noqa: E402

PEER = pathlib.Path(os.environ.get("MP_DEPS_DIR", ROOT / ".deps")) / "peer" / "bin" / "python"
HALF_LIMIT = 5e-3
SHARDINGS = {
    "FULL_SHARD": {},
    "SHARD_GRAD_OP": {"strategy": "SHARD_GRAD_OP"},
    "NO_SHARD": {"strategy": "NO_SHARD"},
    "HYBRID_SHARD": {"strategy": "HYBRID_SHARD", "hybrid_shard_degree": 2},
    "no_sync": {"sync_each_batch": False},
}


def distance(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


class GoldenFsdpTest(RankTestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = json.loads((GOLDEN / "fsdp.json").read_text())

    def setUp(self):
        super().setUp()
        (self.folder / "corpus.txt").write_bytes(fsdp_cases.corpus())

    def ours(self, name, world, policy, variant, sharding=None, checkpointing=None):
        made = fsdp_cases.spec(name.lower().replace("_", "-").replace("/", "-"), policy, variant, world)
        made["sharding"] = sharding or {}
        if checkpointing:
            made["training"]["activation_checkpointing"] = checkpointing
        frames = [e["frame"]["scalars"] for e in self.run_ranks(made, world)[0] if "frame" in e]
        return [f["loss"] for f in frames], [f["grad_norm"] for f in frames]

    def spread(self, golden, policy, variant):
        """How far PyTorch's own runs lie apart when only the order of sums differs: other samples on a rank, other numbers of ranks."""
        curves = []
        for world in fsdp_cases.WORLDS:
            result = golden[f"{policy}/{variant}/{world}"]
            curves += [result["losses"], result["reordered_losses"]]
        return max(distance(a, b) for a, b in itertools.combinations(curves, 2))

    def compare(self, golden, key, world, policy, variant, losses, norms):
        peer = golden[key]
        off = distance(losses, peer["losses"])
        if policy == "FP32":
            self.assertLessEqual(off, 1e-5)
            self.assertLessEqual(distance(norms, golden[f"{policy}/{variant}/1"]["grad_norms"]), 1e-5)
            return
        limit = min(HALF_LIMIT, 1.5 * self.spread(golden, policy, variant))
        if os.environ.get("MP_TEST_VERBOSE"):
            print(f"{key}: {off:.2e} of {limit:.2e}", flush=True)
        self.assertLessEqual(off, limit)

    def check_all(self, golden):
        for key, world, policy, variant in fsdp_cases.cases():
            with self.subTest(case=key):
                self.compare(golden, key, world, policy, variant, *self.ours(key, world, policy, variant))

    def test_every_world_policy_and_variant(self):
        self.check_all(self.golden)

    def test_every_strategy_and_checkpointing(self):
        for policy, (name, sharding) in itertools.product(("FP32", "BF16", "FP16"), SHARDINGS.items()):
            for checkpointing in ({}, {"mode": "FULL"}):
                variant = "accumulate" if name == "no_sync" else "clip"
                key = f"{policy}/{variant}/4"
                with self.subTest(case=key, strategy=name, checkpointing=checkpointing):
                    curve = self.ours(f"{name}-{key}-{len(checkpointing)}", 4, policy, variant, sharding, checkpointing)
                    self.compare(self.golden, key, 4, policy, variant, *curve)

    @unittest.skipUnless(os.environ.get("MP_TEST_LONG") == "true" and PEER.exists(), "SKIPPED: the long form, where tests/bench/trainer/install-peer has run")
    def test_live(self):
        out = self.folder / "live.json"
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "MP_BIN_DIR": str(BIN)}
        subprocess.run([PEER, GOLDEN / "generate_fsdp.py", out], check=True, env=environment, stdout=subprocess.DEVNULL)
        self.check_all(json.loads(out.read_text()))


if __name__ == "__main__":
    unittest.main()
