"""Citations in the frameworks that people build retrieval with, each in one module."""
