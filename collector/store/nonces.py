"""Nonces have 64 bits and no sign; the numbers of SQLite have one."""

from __future__ import annotations


def signed(nonce: int) -> int:
    """SQLite has no unsigned integers."""
    return nonce - (1 << 64) if nonce >> 63 else nonce


def unsigned(nonce: int) -> int:
    """What `signed` was given."""
    return nonce & 0xFFFFFFFFFFFFFFFF
