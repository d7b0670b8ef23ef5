"""Explains many rows, on one machine or a cluster, in parts that are written as Parquet."""
