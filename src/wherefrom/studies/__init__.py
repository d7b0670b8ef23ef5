"""Studies: what a look into the model says, beside the metrics of explanations."""
