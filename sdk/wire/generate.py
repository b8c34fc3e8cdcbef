#!/usr/bin/env python3
"""Writes the wire types of both clients from `bridge/openapi.json`.

    sdk/wire/generate.py            writes sdk/typescript/src/wire and sdk/python/src/forge_bridge/wire
    sdk/wire/generate.py --check    fails if a file is not current, and changes nothing

Each schema of the document is in one file of `FILES` in `language.py`, or in `UNUSED`; a new one has to be added there.
"""

import argparse
import json
import pathlib
import sys

from language import EVENTS, FILES, UNUSED
from python import Python
from typescript import TypeScript

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TYPESCRIPT = ROOT / "sdk/typescript/src/wire"
PYTHON = ROOT / "sdk/python/src/forge_bridge/wire"


def generated() -> dict[pathlib.Path, str]:
    schemas = json.loads((ROOT / "bridge/openapi.json").read_text())["components"]["schemas"]
    known = {name for names in FILES.values() for name in names} | UNUSED | {event for event, _, _ in EVENTS.values()}
    if known != set(schemas):
        missing, gone = sorted(set(schemas) - known), sorted(known - set(schemas))
        sys.exit(f"generate.py: add to FILES or UNUSED: {missing}; no longer in openapi.json: {gone}")
    typescript, python = TypeScript(schemas), Python(schemas)
    files = {TYPESCRIPT / f"{file}.ts": typescript.file(file) for file in FILES}
    files[TYPESCRIPT / "index.ts"] = typescript.index()
    files |= {PYTHON / f"{file}.py": python.file(file) for file in FILES}
    files[PYTHON / "__init__.py"] = python.index()
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="fail if a file is not current, and change nothing")
    check = parser.parse_args().check
    files = generated()
    present = {path for folder, end in ((TYPESCRIPT, "*.ts"), (PYTHON, "*.py")) for path in folder.glob(end)}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    stale += sorted(present - set(files))
    if check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not current: run sdk/wire/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for path in present - set(files):
        path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
