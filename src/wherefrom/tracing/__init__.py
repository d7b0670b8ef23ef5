"""The tracer: sees every torch call of a forward pass, applies rules, tells observers."""
