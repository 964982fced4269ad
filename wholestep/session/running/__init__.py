"""Running sessions: steps, epochs, evaluation, prediction."""
