"""Kinds of input; `readers` lists them."""
