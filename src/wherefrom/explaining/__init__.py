"""From inputs to explanations: one request, batch by batch."""
