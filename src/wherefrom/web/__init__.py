"""One local page on which a person explores a prediction."""
