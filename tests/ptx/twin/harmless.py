"""Planted faults that change nothing that anybody could see, and why."""

HARMLESS: dict[str, str] = {}
"""By Fault.name."""
