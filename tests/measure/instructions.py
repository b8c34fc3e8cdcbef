#!/usr/bin/env python3
"""Counts the instructions of the stages of every dispatch and compares them with a baseline.

    tests/measure/instructions.py            compares; fails on more than 10 % growth
    tests/measure/instructions.py --keep     rewrites the baseline: give the reason in the commit

Counts the unoptimised build: the checks build it anyway, and additional work shows there as well.
Needs valgrind.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASELINE = Path(__file__).with_name("instructions.json")
STAGES = ["read", "validate", "record", "route", "assemble", "normalise", "sign"]
FEW, MANY = 5, 25
ALLOWED = 1.10


def build():
    command = ["cargo", "build", "-p", "forge-bridge", "--bench", "stages", "--message-format=json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in lines.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "stages":
            return message["executable"]
    sys.exit("cargo did not build the program `stages`")


def count(program, stage, times):
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out",
            program, "--do", stage, str(times),
        ]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(re.search(r"Collected : (\d+)", run.stderr).group(1))


def cost(program, stage):
    """Instructions of one iteration; the difference of two runs removes the cost of the start."""
    return (count(program, stage, MANY) - count(program, stage, FEW)) // (MANY - FEW)


def main():
    program = build()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = dict(zip(STAGES, pool.map(lambda stage: cost(program, stage), STAGES)))
    if sys.argv[1:] == ["--keep"]:
        BASELINE.write_text(json.dumps(counts, indent=2) + "\n")
        return
    baseline = json.loads(BASELINE.read_text())
    worse = []
    print(f"{'stage':12} {'baseline':>10} {'now':>10}")
    for stage, now in counts.items():
        before = baseline.get(stage)
        change = now / before - 1 if before else 0
        print(f"{stage:12} {before or 0:10} {now:10} {change:+7.1%}")
        if before and now > before * ALLOWED:
            worse.append(stage)
    if worse:
        sys.exit(f"more than 10 % above {BASELINE.name}: {', '.join(worse)}")


if __name__ == "__main__":
    main()
