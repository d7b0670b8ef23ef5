"""Tests of wherefrom.show."""
