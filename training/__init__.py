"""How the embedded models were made: one seeded, resumable command for each."""
