"""Tests of whence.show."""
