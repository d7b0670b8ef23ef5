"""Explanations shown to a person. Sees only an Explanation, so a saved one shows as well."""
