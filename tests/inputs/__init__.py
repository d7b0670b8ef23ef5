"""Tests of whence.inputs."""
