"""Tables 1 and 2 of Ali et al. (ICML 2022) on nine data sets: `python -m reproduction`."""
