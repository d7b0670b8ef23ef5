"""Tests of wherefrom.methods."""
