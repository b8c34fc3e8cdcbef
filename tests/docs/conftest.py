"""Makes the client in `sdk/python` importable."""

import sys

from blocks import ROOT

sys.path.insert(0, str(ROOT / "sdk/python/src"))
