"""A second, slow, plain version of what the library computes."""
