#!/usr/bin/env python3
"""Latency of the control plane, on a fresh cluster of real processes on this machine.

  submit -> first step   from `mpctl submit` to rank 0's first report frame, for a small two-rank training job
  empty job              from `mpctl submit` to SUCCEEDED, for a job whose only rank runs `true`; one after another
  burst                  the same for many empty jobs submitted at once: jobs per second until the last is SUCCEEDED
  baseline               `sh -c true` as a child process, for the machine's own cost of a process

  MP_BIN_DIR=build/bin tests/bench/control_plane/bench.py [--jobs 50] [--json FILE]

Absolute times depend on the machine; compare runs side by side.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "e2e"))

import specs  # noqa: E402
from cluster import Cluster  # noqa: E402


def timed(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def until_final(cluster, name):
    cluster.mpctl("watch", name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    rows = {}
    with Cluster(workers=2) as cluster:
        specs.write_corpus(cluster.work)
        rows["child process"] = [timed(lambda: subprocess.run(["sh", "-c", "true"], check=True)) for _ in range(args.jobs)]
        rows["mpctl version"] = [timed(lambda: cluster.mpctl("version")) for _ in range(args.jobs)]

        first_step = []
        for number in range(5):
            name = f"first-{number}"

            def run(name=name):
                cluster.submit(specs.training(name, policy="FP8", steps=2))
                cluster.wait_step(name, 1)

            first_step.append(timed(run))
            cluster.wait_final(name)
        rows["submit to first step"] = first_step

        empty = []
        for number in range(args.jobs):
            name = f"empty-{number}"

            def run(name=name):
                cluster.submit(specs.command(name, ["true"]))
                until_final(cluster, name)

            empty.append(timed(run))
        rows["empty job, submit to SUCCEEDED"] = empty

        began = time.perf_counter()
        for number in range(args.jobs):
            cluster.submit(specs.command(f"burst-{number}", ["true"]))
        until_final(cluster, f"burst-{args.jobs - 1}")
        burst = args.jobs / (time.perf_counter() - began)

    print(f"{'what':34} {'n':>4} {'median ms':>10} {'p95 ms':>8}")
    for name, values in rows.items():
        p95 = sorted(values)[int(0.95 * (len(values) - 1))]
        print(f"{name:34} {len(values):4} {1000 * statistics.median(values):10.1f} {1000 * p95:8.1f}")
    print(f"{'burst of empty jobs':34} {args.jobs:4} {burst:10.1f} jobs/s")
    if args.json:
        args.json.write_text(json.dumps({"seconds": rows, "burst_jobs_per_second": burst}, indent=1))


if __name__ == "__main__":
    main()
