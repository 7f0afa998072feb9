#!/usr/bin/env python3
"""Writes tests/golden/fsdp.json: loss curves and gradient norms of PyTorch FSDP2 + Transformers, which test_golden_fsdp.py holds ours to.

  tests/bench/trainer/install-peer
  MP_BIN_DIR=build/bin .deps/peer/bin/python tests/golden/generate_fsdp.py [OUT]

mp-trainer makes the initial weights (one step at a learning rate of 0 and a checkpoint); their initialisation is part of what the file
stands for, so it is made anew when that changes. Takes some minutes on two cores.
"""

import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import save_file

import fsdp_cases as cases

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = pathlib.Path(os.environ.get("MP_BIN_DIR", ROOT / "build" / "bin")).resolve()


def read_model(path):
    """The parameters in a checkpoint file of one rank; the format is worker/trainer/checkpoint/format.md."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    parameters = {}
    for tensor in json.loads(data[8 : 8 + length])["tensors"]:
        if tensor["name"].startswith("model/"):
            values = numpy.frombuffer(data, "<f4", tensor["count"], 8 + length + tensor["begin"])
            parameters[tensor["name"][len("model/"):]] = values.reshape(tensor["global_shape"]).copy()
    return parameters


def initial_weights(folder, variant, name):
    spec = cases.spec(name, "FP32", variant, 1)
    spec["training"]["max_steps"] = 1
    spec["training"]["warmup_steps"] = 1
    (folder / "corpus.txt").write_bytes(cases.corpus())
    (folder / f"{name}.json").write_text(json.dumps(spec))
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run([BIN / "mp-trainer", "--job", f"{name}.json"], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    (folder / name).mkdir()
    save_file(read_model(folder / "runs" / name / "step-00000001-attempt-1" / "rank-00000.tensors"), folder / name / "model.safetensors")


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "fsdp.json"
    results = {}
    with tempfile.TemporaryDirectory(prefix="mp-golden-") as name:
        folder = pathlib.Path(name)
        initial_weights(folder, "plain", "untied")
        initial_weights(folder, "tied", "tied")
        for world in cases.WORLDS:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            ranks = []
            for rank in range(world):
                environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                ranks.append(subprocess.Popen([sys.executable, HERE / "fsdp_peer.py", folder, folder / "out.json"], env=environment))
            if any([rank.wait() for rank in ranks]):
                sys.exit(f"generate_fsdp.py: a rank of world size {world} failed; its message is above")
            results.update(json.loads((folder / "out.json").read_text()))
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(results.items())]
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
