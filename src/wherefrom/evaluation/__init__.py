"""Evaluation of explanations: which method can be trusted on this model and this data.

evaluate          `evaluate`, the entry point: draws samples, resumes, collects the result
sample_records    explains, perturbs and measures some samples; one record for each
explain_samples   explains samples by all methods, and keeps going when one of them fails
forward_cache     runs perturbed inputs in full batches, each distinct one once
metrics           `Metric`, the base class for metrics, and the built-in ones
pointing          segmentation scores of an image's heatmap
results           `Evaluation`: values, intervals, tables, JSON, CSV
"""
