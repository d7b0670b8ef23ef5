"""The embedded models, and the Graphormer."""
