"""The paper's training data."""
