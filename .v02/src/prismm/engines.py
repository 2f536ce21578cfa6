"""Engines: what multiplies the parts, exactly, on which hardware."""

from __future__ import annotations

from prismm.cpu.engines.integer import available

__all__ = ["available"]
