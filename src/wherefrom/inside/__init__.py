"""The inside of a model: relevance of layers, heads, neurons and experts, and interventions."""
