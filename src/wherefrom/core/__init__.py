"""What all other parts use: data types, the model runner, state, memory, errors' helpers."""
