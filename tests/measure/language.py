#!/usr/bin/env python3
"""Counts doc comments that open with a clause in place of a noun ("What is kept of…"), and retired words.

    tests/measure/language.py [--list] [FOLDER …]

A doc block is a run of `///` or `//!` lines. One is counted as headless when its first word is a pronoun or a
conjunction. A retired word is a former name in the code; the list has those with no other meaning. It also counts
as a part of a longer name (`nobody_lives`, `HeraldReader`).
`tests/e2e/tidy.rs` rejects both, except for retired words inside longer names; this script prints the share and, with
`--list`, the places.
"""

import argparse
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ["bridge", "adapter-api", "adapters", "plugins", "tests"]
HEADLESS = set(
    "what who whose whom whether where when why how which that those these so it they he she "
    "nobody somebody whoever whatever everybody anybody".split()
)
REFUSED = set("what who whose whom whether those so".split())
# Lists the retired words itself.
RULES = pathlib.Path("tests/e2e/tidy.rs")
# Letters before or after make another word ("hasten", "go_only"); underscores and digits do not ("nobody_lives").
RETIRED = re.compile(
    r"(?<![A-Za-z])(herald|haste|unwritable|backlogged|parcel|newcomer|glance|whom|somebody|nobody|whoever|anew|"
    r"hand_in|write_up|go_on|give_back|agenda|attendant)s?(?![A-Za-z])"
    # A part of a name in camel case ("HeraldReader").
    r"|(?-i:(?<=[a-z])(?:Herald|Haste|Unwritable|Parcel|Newcomer|Agenda|Attendant)(?![a-z])"
    r"|(?<![A-Za-z])(?:Herald|Haste|Unwritable|Parcel|Newcomer|Agenda|Attendant)(?=[A-Z]))",
    re.IGNORECASE,
)


def blocks(text):
    """Doc blocks with the number of their first line."""
    begin, lines = 0, []
    for number, line in enumerate(text.splitlines() + [""], 1):
        found = re.match(r"\s*(///|//!)(?!/)\s?(.*)", line)
        if found:
            begin = begin if lines else number
            lines.append(found.group(2))
        elif lines:
            yield begin, "\n".join(lines)
            lines = []


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--list", action="store_true", help="print each place")
    arguments.add_argument("folder", nargs="*", default=FOLDERS)
    asked = arguments.parse_args()
    all_blocks = headless = refused = retired = 0
    for folder in asked.folder:
        for file in sorted((ROOT / folder).rglob("*.rs")):
            if "target" in file.parts or "node_modules" in file.parts:
                continue
            text = file.read_text()
            name = file.relative_to(ROOT)
            for line, block in blocks(text):
                all_blocks += 1
                word = re.match(r"\W*([A-Za-z']*)", block).group(1).lower()
                if word in HEADLESS:
                    headless += 1
                    refused += word in REFUSED
                    if asked.list:
                        print(f"{name}:{line}: {block.splitlines()[0]}")
            if name == RULES:
                continue
            for number, line in enumerate(text.splitlines(), 1):
                for found in RETIRED.finditer(line):
                    retired += 1
                    if asked.list:
                        print(f"{name}:{number}: retired word {found.group()}")
    share = 100 * headless / max(1, all_blocks)
    print(f"{all_blocks} doc blocks, {headless} headless ({share:.1f} %), {refused} refused; {retired} retired words")


if __name__ == "__main__":
    main()
