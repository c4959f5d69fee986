"""The model: one readable transformer with a fast path for training and an explicit path for looking in."""
