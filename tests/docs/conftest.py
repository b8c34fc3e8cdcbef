"""Makes the client in `sdk/python` and the scripts in `terminal` importable."""

import sys

from blocks import ROOT

sys.path[:0] = [str(ROOT / "sdk/python/src"), str(ROOT / "tests/docs/terminal")]
