"""Evaluation of explanations: which method can be trusted on a model and its data.

evaluate          `evaluate`, the entry point: draws samples, resumes, collects the result
sample_records    explains, perturbs and measures samples, with one record per sample
forward_cache     runs perturbed inputs in full batches, each distinct one once
metrics           `Metric`, the base class for metrics, and the built-in ones
pointing          segmentation scores of an image's heatmap
recommendation    the method that the samples support, with intervals and equivalence tests
results           `Evaluation`: values, intervals, tables, JSON, CSV
"""
