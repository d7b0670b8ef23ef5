"""Tools of development: mutation tests."""
