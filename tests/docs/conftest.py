"""Keeps the bridge of a page running for its tests."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from blocks import ROOT

sys.path.insert(0, str(ROOT / "sdk/python/src"))
sys.path.insert(0, str(Path(__file__).parent))
with contextlib.suppress(ImportError):
    import forge_bridge  # noqa: F401
