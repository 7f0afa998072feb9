#!/usr/bin/env python3
"""Runs the end-to-end tests: every tests/e2e/test_*.py, each in a process of its own, one after another.

  tests/e2e/run.py [--filter REGEX]

Environment: MP_BIN_DIR (folder of the built programs), MP_TEST_LONG (true: long forms as well).
"""

import argparse
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="only modules whose name matches this regular expression")
    args = parser.parse_args()
    modules = [p for p in sorted(HERE.glob("test_*.py")) if re.search(args.filter, p.stem)]
    failed = []
    for module in modules:
        began = time.monotonic()
        print(f"-- {module.stem}", flush=True)
        result = subprocess.run([sys.executable, "-m", "unittest", "-v", module.stem], cwd=HERE)
        print(f"   {time.monotonic() - began:.1f} s", flush=True)
        if result.returncode != 0:
            failed.append(module.stem)
    if failed:
        print("failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
