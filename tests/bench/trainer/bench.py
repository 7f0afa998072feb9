#!/usr/bin/env python3
"""Trainer throughput and memory at two ranks, one thread each, beside PyTorch FSDP2 + Transformers, in turns in one run.

  tests/bench/trainer/install-peer
  tests/bench/trainer/bench.py [--bin build/bin] [--model 29M|92M] [--rounds 3] [--steps 8] [--json FILE]

Each row: median over rounds of the median step, tokens/s of both ranks together, peak resident memory of rank 0, and the ratios that the
targets speak of. Rounds alternate between all contestants, so that a slow minute of the machine meets them all. "of SGEMM" is the time
that the step's matrix products take in fp32 at the library's speed, measured in the same round on both cores at once, over the step's.
Models: Llamas of hidden 512, 8 layers, 8 heads, intermediate 1376 (29.5M parameters), and of hidden 768, 12 layers, 12 heads, intermediate
2048 (91M); vocabulary 4096, sequence 256, batch 4 a rank.
"""

import argparse
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODELS = {
    "29M": {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8, "vocab_size": 4096,
            "max_position_embeddings": 256},
    "92M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 4096,
            "max_position_embeddings": 256},
}
SEQUENCE, BATCH, RANKS = 256, 4, 2
POLICIES = ("FP32", "BF16", "FP16", "FP8")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(argv, cwd):
    """Runs argv once a rank; standard output of rank 0."""
    port = free_port()
    processes = []
    for rank in range(RANKS):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        # Files, not pipes: a rank whose pipe nobody empties would hold up all others.
        files = [open(pathlib.Path(cwd) / f"rank-{rank}.{kind}", "w+") for kind in ("out", "err")]
        processes.append((subprocess.Popen(argv, cwd=cwd, env=env, stdout=files[0], stderr=files[1]), files))
    texts = []
    for process, files in processes:
        process.wait()
        for file in files:
            file.seek(0)
        texts.append(files[0].read())
        errors = files[1].read()
        for file in files:
            file.close()
        if process.returncode != 0:
            raise RuntimeError(f"{argv}: exit {process.returncode}\n{errors[-3000:]}")
    return texts[0]


def products(model):
    """(rows, columns, inner, count) of a step's matrix products on one rank: forward, and both gradients. Attention's own, a few percent,
    are left out."""
    h, i, v, layers = (model[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers"))
    tokens = SEQUENCE * BATCH
    for out, inner, count in ((h, h, 4 * layers), (i, h, 2 * layers), (h, i, layers), (v, h, 1)):
        yield tokens, out, inner, count
        yield tokens, inner, out, count
        yield out, inner, tokens, count


def run_sgemm(python, model, folder):
    """Seconds of these products in fp32, one thread on each core at once."""
    argv = [str(python), str(pathlib.Path(__file__).with_name("sgemm.py")), json.dumps(list(products(model)))]
    return {"seconds": json.loads(run_ranks(argv, folder).splitlines()[-1])["seconds"]}


def run_ours(binary, policy, steps, folder, model):
    spec = {
        "name": "bench",
        "model": {"config": {"model_type": "llama", **model}},
        "precision": {"policy": policy},
        "data": {"train": [{"path": "corpus.txt"}], "sequence_length": SEQUENCE},
        "training": {"max_steps": steps + 2, "per_device_train_batch_size": BATCH, "learning_rate": 1e-4, "logging_steps": 1,
                     "output_dir": f"out-{policy}"},
    }
    (folder / "job.json").write_text(json.dumps(spec))
    lines = run_ranks([str(binary), "--job", "job.json"], folder).splitlines()
    frames = [event["frame"]["scalars"] for event in map(json.loads, lines) if "frame" in event][2:]
    return {
        "tokens_per_second": statistics.median(f["tokens_per_second"] for f in frames),
        "peak_bytes": frames[-1]["memory_peak_bytes"],
    }


def run_peer(python, dtype, reshard, steps, folder, model):
    argv = [str(python), str(pathlib.Path(__file__).with_name("peer.py")), "--model", json.dumps(model), "--dtype", dtype,
            "--reshard", reshard, "--batch", str(BATCH), "--sequence", str(SEQUENCE), "--steps", str(steps)]
    return json.loads(run_ranks(argv, folder).splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "bin")
    parser.add_argument("--peer", type=pathlib.Path, default=ROOT / ".deps" / "peer" / "bin" / "python")
    parser.add_argument("--model", choices=MODELS, default="29M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--ours-only", action="store_true", help="leave the peer out")
    args = parser.parse_args()
    if not args.ours_only and not args.peer.exists():
        sys.exit(f"{args.peer} is missing: run tests/bench/trainer/install-peer")
    model = MODELS[args.model]
    results, sgemm = {}, []
    with tempfile.TemporaryDirectory(prefix="mp-bench-") as name:
        folder = pathlib.Path(name)
        # Uniform bytes: only the speed is of interest, and no value may depend on what lies on this machine.
        (folder / "corpus.txt").write_bytes(random.Random(0).randbytes(4 << 20))
        contestants = {f"ours {policy}": lambda p=policy: run_ours(args.bin / "mp-trainer", p, args.steps, folder, model) for policy in POLICIES}
        for dtype in () if args.ours_only else ("fp32", "bf16"):
            for reshard in ("true", "false"):
                contestants[f"peer {dtype} reshard={reshard}"] = lambda d=dtype, r=reshard: run_peer(args.peer, d, r, args.steps, folder, model)
        for number in range(args.rounds):
            if not args.ours_only:
                sgemm.append(run_sgemm(args.peer, model, folder)["seconds"])
            for contestant, run in contestants.items():
                result = run()
                results.setdefault(contestant, []).append(result)
                print(f"round {number + 1}  {contestant:24} {result['tokens_per_second']:9.0f} tokens/s", file=sys.stderr)
    table = {
        contestant: {key: statistics.median(r[key] for r in runs) for key in ("tokens_per_second", "peak_bytes")}
        for contestant, runs in results.items()
    }
    fp32 = max((v["tokens_per_second"] for k, v in table.items() if k.startswith("peer fp32")), default=float("nan"))
    bf16 = max((v["tokens_per_second"] for k, v in table.items() if k.startswith("peer bf16")), default=float("nan"))
    ours = table["ours FP32"]["tokens_per_second"]
    products_seconds = statistics.median(sgemm) if sgemm else float("nan")
    print(f"{'':24} {'tokens/s':>9} {'/peer fp32':>10} {'/peer bf16':>10} {'/ours FP32':>10} {'of SGEMM':>9} {'peak MiB':>9}")
    for contestant, row in table.items():
        speed = row["tokens_per_second"]
        print(f"{contestant:24} {speed:9.0f} {speed / fp32:10.2f} {speed / bf16:10.2f} {speed / ours:10.2f} "
              f"{products_seconds / (SEQUENCE * BATCH * RANKS / speed):9.2f} {row['peak_bytes'] / 2**20:9.0f}")
    if args.json:
        args.json.write_text(json.dumps({"model": model, "table": table, "runs": results, "sgemm_seconds": sgemm}, indent=1))


if __name__ == "__main__":
    main()
