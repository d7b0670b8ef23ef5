"""The tests; importable so that they can share their oracles."""
