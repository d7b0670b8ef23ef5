"""Answers of language models: why this answer, and from which part of the prompt."""
