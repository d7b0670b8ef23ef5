"""Tests of whence.methods."""
