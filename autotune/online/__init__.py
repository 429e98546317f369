"""Tunes a DataLoader in the training process itself, while it trains."""
