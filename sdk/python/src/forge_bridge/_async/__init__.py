"""Clients for asyncio, and the source of those without it: `unasync.py` writes `_sync` from here."""
