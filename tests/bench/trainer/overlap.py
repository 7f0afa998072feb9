#!/usr/bin/env python3
"""How much of the communication a step hides behind its computation: two ranks in two network namespaces whose link is rate-limited.

  tests/bench/trainer/overlap.py [--bin build/bin] [--rate 300] [--batch 32] [--steps 6] [--policy BF16] [--json FILE]     (as root)

  communication   bytes that a rank sends in a step (the trainer's own count) at the link's rate
  computation     the step over the same link without a limit
  exposed         (limited step - computation) / communication, with prefetch on and off; below 1 is hidden

The model is the first benchmark's (29.5M parameters, sequence 256). Rounds alternate between the three settings.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from bench import MODELS, ROOT, SEQUENCE

SPACES = ("mp-overlap-0", "mp-overlap-1")
ADDRESSES = ("10.231.7.1", "10.231.7.2")
PREFETCH = {"forward_prefetch": True, "backward_prefetch": "BACKWARD_PRE"}
NO_PREFETCH = {"forward_prefetch": False, "backward_prefetch": "NO_PREFETCH"}


def run(*argv):
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def namespaces():
    try:
        for space in SPACES:
            run("ip", "netns", "add", space)
        run("ip", "link", "add", "mpv0", "netns", SPACES[0], "type", "veth", "peer", "name", "mpv1", "netns", SPACES[1])
        for i, space in enumerate(SPACES):
            run("ip", "-n", space, "addr", "add", f"{ADDRESSES[i]}/24", "dev", f"mpv{i}")
            run("ip", "-n", space, "link", "set", f"mpv{i}", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)


def limit(rate):
    """Mbit/s in each direction; None: no limit."""
    for i, space in enumerate(SPACES):
        subprocess.run(["tc", "-n", space, "qdisc", "del", "dev", f"mpv{i}", "root"], stderr=subprocess.DEVNULL, check=False)
        if rate is not None:
            run("tc", "-n", space, "qdisc", "add", "dev", f"mpv{i}", "root", "tbf", "rate", f"{rate}mbit", "burst", "256kb", "latency", "400ms")


def train(binary, folder, arguments, sharding):
    """(median step seconds, bytes sent by rank 0 in a step)"""
    spec = {
        "name": "overlap",
        "model": {"config": {"model_type": "llama", **MODELS["29M"]}},
        "precision": {"policy": arguments.policy},
        "sharding": sharding,
        "data": {"train": [{"path": "corpus.txt"}], "sequence_length": SEQUENCE},
        "training": {"max_steps": arguments.steps, "per_device_train_batch_size": arguments.batch, "logging_steps": 1, "output_dir": "out"},
        "resources": {"nodes": 2},
    }
    (folder / "job.json").write_text(json.dumps(spec))
    subprocess.run(["rm", "-rf", folder / "out"], check=True)
    ranks = []
    for rank, space in enumerate(SPACES):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=ADDRESSES[0], MASTER_PORT="29411", OMP_NUM_THREADS="1")
        files = [open(folder / f"rank-{rank}.{kind}", "w+") for kind in ("out", "err")]
        ranks.append((subprocess.Popen(["ip", "netns", "exec", space, binary, "--job", "job.json"], cwd=folder, env=env, stdout=files[0],
                                       stderr=files[1]), files))
    for process, files in ranks:
        if process.wait() != 0:
            files[1].seek(0)
            raise RuntimeError(files[1].read()[-2000:])
    ranks[0][1][0].seek(0)
    events = [json.loads(line) for line in ranks[0][1][0]]
    steps = [e["frame"]["scalars"]["step_seconds"] for e in events if "frame" in e]
    metrics = next(e["finished"]["metrics"] for e in events if "finished" in e)
    sent = sum(value for key, value in metrics.items() if key.startswith("wire_bytes_"))
    return statistics.median(steps[1:]), sent / len(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--rate", type=int, default=300, help="Mbit/s")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--policy", default="BF16")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("overlap.py makes network namespaces: run it as root")
    settings = {"unlimited": (None, PREFETCH), "prefetch": (arguments.rate, PREFETCH), "no prefetch": (arguments.rate, NO_PREFETCH)}
    measured = {name: [] for name in settings}
    sent = 0
    with namespaces(), tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        (folder / "corpus.txt").write_bytes(random.Random(0).randbytes(4 << 20))
        for _ in range(arguments.rounds):
            for name, (rate, sharding) in settings.items():
                limit(rate)
                seconds, sent = train(arguments.bin.resolve() / "mp-trainer", folder, arguments, sharding)
                measured[name].append(seconds)
    step = {name: statistics.median(values) for name, values in measured.items()}
    communication = sent * 8 / (arguments.rate * 1e6)
    result = {"computation": step["unlimited"], "communication": communication, "step": step,
              "exposed": {name: (step[name] - step["unlimited"]) / communication for name in ("prefetch", "no prefetch")}}
    print(f"{arguments.policy}, batch {arguments.batch} a rank, {arguments.rate} Mbit/s: {sent / 1e6:.1f} MB sent by a rank in a step")
    print(f"  computation {result['computation']:.2f} s, communication {communication:.2f} s")
    for name, share in result["exposed"].items():
        print(f"  {name:12}  step {step[name]:.2f} s, exposed {share:.2f} of the communication")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
