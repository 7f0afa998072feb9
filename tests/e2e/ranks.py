"""Ranks of mp-trainer started by hand, without a controller."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

import specs
from cluster import BIN


class RankTestCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mp-trainer-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        specs.write_corpus(self.folder)

    def start(self, spec, world, env=(), **options):
        """Starts the ranks; (process, output file) of each."""
        path = self.folder / f"{spec['name']}.json"
        path.write_text(json.dumps(spec))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = []
        for rank in range(world):
            variables = {"PATH": os.environ["PATH"], **dict(env)}
            if world > 1:
                variables.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            output = open(self.folder / f"{spec['name']}-{rank}.out", "w+")
            errors = open(self.folder / f"{spec['name']}-{rank}.err", "w+")
            self.addCleanup(output.close)
            self.addCleanup(errors.close)
            process = subprocess.Popen([BIN / "mp-trainer", "--job", path], cwd=self.folder, env=variables, stdout=output, stderr=errors, **options)
            self.addCleanup(lambda p=process: (p.kill(), p.wait()))
            ranks.append((process, output, errors))
        return ranks

    def events(self, rank):
        rank[1].seek(0)
        return [json.loads(line) for line in rank[1]]

    def run_ranks(self, spec, world, env=()):
        ranks = self.start(spec, world, env)
        for process, _, errors in ranks:
            code = process.wait(timeout=120)
            errors.seek(0)
            self.assertEqual(code, 0, errors.read()[-2000:])
        return [self.events(rank) for rank in ranks]

    @staticmethod
    def losses(events):
        return {int(e["frame"]["step"]): e["frame"]["scalars"]["loss"] for e in events if "frame" in e}
