"""Shows explanations as text, pages and figures, from the Explanation alone."""
