"""Tests of wherefrom.inputs."""
