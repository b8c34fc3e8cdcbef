#!/usr/bin/env python3
"""Draws an asciicast as an animated SVG without scripts, which a page can show as a picture.

    render.py CAST SVG

It knows what our commands write: text, line ends, colours and the erasing of a line. Output is slowed down so that a
reader can follow it, and idle times are shortened; the end stays for some seconds. For readers who want no motion it is
the last screen.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

# Seconds: least between two lines, before an empty line, most of an idle time, and of the last screen.
LINE, PARAGRAPH, IDLE, END = 0.09, 0.9, 0.7, 6.0
# Pixels: of a letter, of a line, and around the text.
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14
FONT = "14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#56d4dd"}
TOKEN = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)|(\x1b)")

# Class of a letter: its colour and weight.
Style = tuple[int, bool, bool]
PLAIN: Style = (0, False, False)
Cells = list[tuple[str, Style]]


@dataclasses.dataclass
class Line:
    """A line of the whole output: its contents from a time on."""

    versions: list[tuple[float, Cells]] = dataclasses.field(default_factory=list)


class Screen:
    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines = [Line()]
        self._cells: Cells = []
        self._column = 0
        self._style = PLAIN

    def write(self, at: float, text: str) -> None:
        for parameters, command, back, end, letters, odd in TOKEN.findall(text):
            assert not odd, "an escape sequence that is not drawn"
            if back:
                self._column = 0
            elif end:
                self._next(at)
            elif command == "m":
                self._colour([int(number or 0) for number in parameters.split(";")])
            elif command == "K":
                self._cells = [] if parameters == "2" else self._cells[: self._column]
            else:
                assert letters or parameters.startswith("?"), f"the sequence {parameters}{command} is not drawn"
                for letter in letters:
                    if self._column == self.columns:
                        self._next(at)
                        self._column = 0
                    self._cells += [(" ", PLAIN)] * (self._column - len(self._cells))
                    self._cells[self._column : self._column + 1] = [(letter, self._style)]
                    self._column += 1
        self._show(at)

    def _next(self, at: float) -> None:
        self._show(at)
        self.lines.append(Line())
        self._cells = []

    def _show(self, at: float) -> None:
        versions = self.lines[-1].versions
        if not versions or versions[-1][1] != self._cells:
            if versions and versions[-1][0] == at:
                versions.pop()
            versions.append((at, list(self._cells)))

    def _colour(self, numbers: list[int]) -> None:
        colour, bold, dim = self._style
        for number in numbers:
            if number == 0:
                colour, bold, dim = PLAIN
            elif number in (1, 2):
                bold, dim = bold or number == 1, dim or number == 2
            elif number == 22:
                bold = dim = False
            elif number == 39:
                colour = 0
            else:
                assert number in COLOURS, f"the colour {number} is not drawn"
                colour = number
        self._style = (colour, bold, dim)


def paced(events: list[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """The events line by line, at the times at which they are drawn."""
    shown = before = 0.0
    for at, text in events:
        shown += min(at - before, IDLE)
        before = at
        for piece in text.splitlines(keepends=True):
            if piece.endswith("\n"):
                shown += LINE if piece.strip() else PARAGRAPH
            yield round(shown, 3), piece


def spans(cells: Cells) -> Iterator[tuple[int, str, Style]]:
    """Runs of letters of one style, with their columns; blanks at the ends are left out."""
    start = 0
    for column in range(1, len(cells) + 1):
        if column == len(cells) or cells[column][1] != cells[start][1]:
            text = "".join(letter for letter, _ in cells[start:column])
            if text.strip():
                yield start + len(text) - len(text.lstrip()), text.strip(), cells[start][1]
            start = column


def classes(style: Style) -> str:
    colour, bold, dim = style
    names = [name for name, has in ((f"c{colour}", colour), ("b", bold), ("d", dim)) if has]
    return f' class="{" ".join(names)}"' if names else ""


def render(cast: str) -> str:
    first, *rest = cast.splitlines()
    header = json.loads(first)
    screen = Screen(header["width"])
    last = 0.0
    scrolls = [(0.0, 0)]
    for last, text in paced([(at, text) for at, _, text in map(json.loads, rest)]):
        screen.write(last, text)
        hidden = max(0, len(screen.lines) - header["height"])
        if hidden != scrolls[-1][1]:
            scrolls.append((last, hidden))
    total = last + END

    def percent(at: float) -> str:
        return f"{at / total * 100:.3f}".rstrip("0").rstrip(".") + "%"

    frames: list[str] = []
    drawn: list[str] = []
    for row, line in enumerate(screen.lines):
        for index, (at, cells) in enumerate(line.versions):
            parts = list(spans(cells))
            if not parts:
                continue
            following = line.versions[index + 1][0] if index + 1 < len(line.versions) else None
            end = f"{percent(following)}{{visibility:hidden}}" if following is not None else ""
            name = f"t{len(frames)}"
            frames.append(f"@keyframes {name}{{0%{{visibility:hidden}}{percent(at)}{{visibility:visible}}{end}}}")
            letters = "".join(
                f'<tspan x="{column * WIDTH:g}"{classes(style)}>{escape(text, quote=False)}</tspan>'
                for column, text, style in parts
            )
            old = ' class="o"' if following is not None else ""
            drawn.append(f'<text y="{row * HEIGHT}"{old} style="animation-name:{name}">{letters}</text>')
    scroll = "".join(f"{percent(at)}{{transform:translateY({-hidden * HEIGHT}px)}}" for at, hidden in scrolls)
    width, height = header["width"] * WIDTH + 2 * MARGIN, header["height"] * HEIGHT + 2 * MARGIN
    colours = "".join(f".c{number}{{fill:{colour}}}" for number, colour in COLOURS.items())
    style = (
        f"text,g{{animation:{total:g}s step-end infinite}}text{{fill:#e6edf3;white-space:pre}}"
        f".o{{visibility:hidden}}.b{{font-weight:700}}.d{{fill:#9198a1}}{colours}{''.join(frames)}"
        f"@keyframes s{{{scroll}}}@media(prefers-reduced-motion:reduce){{text,g{{animation:none}}}}"
    )
    size = f'viewBox="0 0 {width:g} {height}" width="{width:g}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n'
        f"<style>{style}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n'
        # As wide as the picture, since the letters of some fonts are wider.
        f'<svg x="{MARGIN}" y="{MARGIN}" width="100%" height="{header["height"] * HEIGHT}" '
        f'style="font:{FONT}">\n'
        f'<g style="animation-name:s;transform:translateY({-scrolls[-1][1] * HEIGHT}px)">\n'
        f'<g transform="translate(0 {HEIGHT - 5})">\n' + "\n".join(drawn) + "\n</g>\n</g>\n</svg>\n</svg>\n"
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    Path(sys.argv[2]).write_text(render(Path(sys.argv[1]).read_text()))
