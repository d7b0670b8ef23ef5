"""Explains inputs batch by batch."""
