"""Models that come with the library, and model kinds of its own."""
