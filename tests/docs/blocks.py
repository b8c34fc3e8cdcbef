"""The fenced blocks of the pages in `docs/`."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# A comment on the line before a block that cannot be run here: `<!-- not run: REASON -->`.
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclasses.dataclass
class Block:
    page: str
    line: int
    language: str
    code: str
    # Why it is not run; empty if it is.
    reason: str = ""
    # Of a block of commands: the output that the page shows directly below it.
    output: str = ""

    @property
    def place(self) -> str:
        return f"docs/{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    lines = (ROOT / "docs" / page).read_text().splitlines()
    number = 0
    previous_end = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if not line.startswith("```"):
            continue
        begin = number
        while lines[number] != "```":
            number += 1
        code = "\n".join(lines[begin:number]) + "\n"
        number += 1
        above = lines[begin - 2] if begin > 1 else ""
        marked = NOT_RUN.fullmatch(above.strip())
        block = Block(page, begin, line[3:].strip(), code, marked[1] if marked else "")
        between = "".join(lines[previous_end : begin - 1]).strip()
        if block.language == "text" and found and found[-1].language == "sh" and not between:
            found[-1].output = code
        found.append(block)
        previous_end = number
    return found


def of(page: str, language: str) -> list[Block]:
    """Blocks of a language that are to be run."""
    return [block for block in blocks(page) if block.language == language and not block.reason]
