"""The audit: which axioms each method keeps on a model."""
