"""The tracer: applies a rule to each torch call of a forward pass and notifies observers."""
