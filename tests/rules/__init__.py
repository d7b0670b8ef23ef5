"""Tests of whence.rules."""
