"""A local web page for exploring the predictions of a few models."""
