"""What watches a traced pass: each file is one observer."""
