"""Many rows, on one machine or a cluster: read in parts, explained, written as Parquet."""
