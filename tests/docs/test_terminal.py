"""The recording of `demo` and `drill` in a terminal, which README.md shows."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree

import pytest
from blocks import ROOT
from bridge import PROGRAM
from record import DOCS, record
from render import render

PICTURE = ROOT / "docs/terminal.svg"


def lines(svg: str) -> list[str]:
    """Text of each line of a picture that is its last one."""
    root = xml.etree.ElementTree.fromstring(svg)
    texts = root.iter("{http://www.w3.org/2000/svg}text")
    return [" ".join(text.itertext()) for text in texts if text.get("class") != "o"]


def headings(svg: str) -> list[str]:
    """Headings, rows of the report and last lines, without what differs between runs."""
    wanted = re.compile(r"\d  |[a-z ]+ [\d,.]+( m?s)? +[a-z]|lost|Nothing|Done")
    return [re.sub(r"\d[\d,.]*( m?s\b)?|dsp_\w+", "0", line) for line in lines(svg) if wanted.match(line)]


@pytest.fixture(scope="module")
def cast() -> str:
    """A shorter recording than that of the picture, with the same commands."""
    return record(PROGRAM, [*DOCS[:-1], DOCS[-1].replace("20", "8")])


def test_a_recording_is_an_asciicast(cast: str) -> None:
    header, *events = map(json.loads, cast.splitlines())
    assert header["version"] == 2 and (header["width"], header["height"]) == (100, 30)
    assert all(kind == "o" for _, kind, _ in events)
    times = [at for at, _, _ in events]
    assert times == sorted(times) and len(times) > 60
    shown = "".join(text for _, _, text in events)
    assert "$ forge-bridge demo\r\n" in shown and "valid signature" in shown
    assert "Nothing that was answered 202 was lost." in shown


def test_a_recording_has_no_folder_of_this_machine(cast: str) -> None:
    for text in (cast, PICTURE.read_text()):
        assert "/home/me/forge-bridge-drill-" in text
        assert not re.search(r"/(tmp|work|root|build|home/(?!me/))", text)


def test_the_picture_shows_what_the_commands_print(cast: str) -> None:
    drawn = render(cast)
    assert len(headings(drawn)) > 10
    again = "record it again: tests/docs/terminal/record.py --docs PROGRAM"
    assert headings(PICTURE.read_text()) == headings(drawn), again


def test_a_picture_shows_the_last_state_of_each_line(cast: str) -> None:
    header = json.dumps({"version": 2, "width": 10, "height": 3})
    events = [(0.5, "1/2 <\r"), (0.6, "\x1b[2K2/2\x1b[1m!\x1b[0m\r\nlonger than a line\r\n\r\nend")]
    small = "\n".join([header, *(json.dumps([at, "o", text]) for at, text in events)])
    assert lines(render(small)) == ["2/2 !", "longer tha", "n a line", "end"]
    everything = xml.etree.ElementTree.fromstring(render(small))
    assert "1/2 <" in "".join(everything.itertext())
    # Two of its five lines have left the screen, also for readers who want no motion.
    assert 'transform:translateY(-36px)"' in render(small)


def test_a_sequence_that_is_not_drawn_is_refused() -> None:
    header = json.dumps({"version": 2, "width": 10, "height": 3})
    for text in ("\x1b[5A", "\x1b]0;title\x07", "\x1b[48m"):
        with pytest.raises(AssertionError, match="is not drawn"):
            render("\n".join([header, json.dumps([0.1, "o", text])]))


def test_the_picture_is_small_and_loads_nothing() -> None:
    text = PICTURE.read_text()
    assert len(text) < 80_000 and "prefers-reduced-motion" in text
    assert not re.search(r"<script|href|url\(|@import", text)
    assert "(docs/terminal.svg)" in (ROOT / "README.md").read_text()
