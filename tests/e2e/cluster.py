"""A real cluster of processes on loopback for one test: mp-controller and mp-workers started by `mpctl dev up`.

All state lives in a temporary folder, so tests run beside each other and beside a user's own cluster.
"""

import contextlib
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time

BIN = pathlib.Path(os.environ.get("MP_BIN_DIR", pathlib.Path(__file__).parents[2] / "build" / "bin")).resolve()
FINAL = {"SUCCEEDED", "FAILED", "CANCELLED"}


class CommandError(AssertionError):
    def __init__(self, argv, result):
        super().__init__(f"{' '.join(map(str, argv))}\nexit {result.returncode}\n{result.stdout}\n{result.stderr}")
        self.result = result


class LineStream:
    """A process whose standard output is read line by line, with a deadline on each read."""

    def __init__(self, argv, **kwargs):
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)
        self._lines = queue.Queue()
        self._threads = [threading.Thread(target=self._read, daemon=True)]
        self._threads[0].start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def lines(self, timeout):
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"nothing as expected from {self.process.args} within {timeout} s") from None
            if line is None:
                return
            yield line

    def close(self):
        self.process.kill()
        self.process.wait()
        self._threads[0].join()
        self.process.stdout.close()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Cluster:
    def __init__(self, workers=2, up_args=()):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="mp-e2e-"))
        self.work = self.root / "work"
        self.work.mkdir()
        self.data = self.root / "data"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "XDG_STATE_HOME": str(self.root / "state"),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
        }
        self.workers = workers
        self.up_args = list(up_args)

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind, *_):
        self._end(keep=kind is not None)

    def _end(self, keep=False):
        with contextlib.suppress(Exception):
            self.mpctl("dev", "down", check=False)
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if keep:
            print(f"cluster's files are kept in {self.root}")
        else:
            shutil.rmtree(self.root, ignore_errors=True)
        assert not left, f"`mpctl dev down` left processes behind: {left}"

    # -- commands ------------------------------------------------------------------------------------------------------

    def mpctl(self, *args, check=True, stdin=None, timeout=120):
        argv = [BIN / "mpctl", *map(str, args)]
        result = subprocess.run(
            argv, cwd=self.work, env=self.env, input=stdin, capture_output=True, text=True, timeout=timeout
        )
        if check and result.returncode != 0:
            raise CommandError(argv, result)
        return result

    def mpctl_json(self, *args, **kwargs):
        return json.loads(self.mpctl(*args, "-o", "json", **kwargs).stdout)

    def stream(self, *args):
        return LineStream([BIN / "mpctl", *map(str, args)], cwd=self.work, env=self.env)

    def up(self):
        return self.mpctl("dev", "up", "--workers", self.workers, "--data-dir", self.data, *self.up_args)

    def submit(self, spec):
        return self.mpctl("submit", "-f", "-", stdin=json.dumps(spec))

    def job(self, name):
        return self.mpctl_json("get", "job", name)

    def wait_event(self, name, predicate, timeout=120):
        """The first event of the job, from its start on, for which predicate holds."""
        with self.stream("watch", name, "-o", "json") as watch:
            seen = []
            for line in watch.lines(timeout):
                record = json.loads(line)
                event = record.get("event")
                if event is None:
                    continue
                seen.append(event)
                if predicate(event):
                    return event
            error = watch.process.stderr.read()
        raise AssertionError(f"watch of {name} ended before the event: {seen}\n{error}")

    def wait_state(self, name, *states, timeout=300):
        event = self.wait_event(name, lambda e: e.get("state") in states or e.get("state") in FINAL, timeout)
        assert event["state"] in states, f"{name}: {event}; wanted {states}\n{self.diagnosis(name)}"
        return event

    def wait_final(self, name, state="SUCCEEDED", timeout=300):
        self.wait_state(name, state, timeout=timeout)
        return self.job(name)

    def wait_step(self, name, step, timeout=300, attempt=1):
        """Until rank 0 has reported `step` in `attempt` or a later one."""
        with self.stream("metrics", name, "--follow", "-o", "json") as follow:
            for line in follow.lines(timeout):
                record = json.loads(line)
                if record.get("attempt", 1) >= attempt and int(record["frame"]["step"]) >= step:
                    return record
        raise AssertionError(f"{name} ended before step {step}\n{self.diagnosis(name)}")

    def series(self, name, *patterns, rank=0):
        args = [x for p in patterns for x in ("--series", p)]
        reply = self.mpctl_json("metrics", name, *args, "--rank", rank)
        return {
            (s["name"], s.get("rank", 0)): dict(zip(map(int, s["steps"]), map(float, s["values"])))
            for s in reply.get("series", [])
        }

    def diagnosis(self, name):
        parts = [self.mpctl("describe", "job", name, check=False).stdout]
        parts.append(self.mpctl("logs", name, "--all-ranks", "--tail", "20", check=False).stdout)
        return "\n".join(parts)

    # -- processes -----------------------------------------------------------------------------------------------------

    def processes(self, program=None):
        """pids of this cluster's processes (recognised by the temporary folder in argv, environment or cwd)."""
        found = []
        marker = str(self.root).encode()
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                argv = (entry / "cmdline").read_bytes()
                where = argv + (entry / "environ").read_bytes()
            except OSError:
                continue
            if not argv or marker not in where:
                continue
            executable = pathlib.Path(os.fsdecode(argv.split(b"\0")[0])).name
            if program is None or executable == program:
                found.append(int(entry.name))
        return sorted(found)

    def rank_pids(self):
        """rank -> pid of the running mp-trainer processes."""
        ranks = {}
        for pid in self.processes("mp-trainer"):
            with contextlib.suppress(OSError):
                environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                for entry in environ:
                    if entry.startswith(b"RANK="):
                        ranks[int(entry[5:])] = pid
        return ranks

    def kill(self, pid, sig=signal.SIGKILL):
        os.kill(pid, sig)

    def worker_pids(self):
        return self.processes("mp-worker")

    def controller_pid(self):
        (pid,) = self.processes("mp-controller")
        return pid
