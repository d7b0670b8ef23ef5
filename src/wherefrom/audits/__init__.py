"""The audit: which axioms each method satisfies on a model."""
