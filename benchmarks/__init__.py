"""Measurements: the family matrix, speed beside peers, the paper's tables."""
