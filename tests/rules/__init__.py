"""Tests of wherefrom.rules."""
