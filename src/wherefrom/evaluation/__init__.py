"""Tests of explanations: which of them can be trusted on this model and this data."""
