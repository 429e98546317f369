"""Datasets and training steps to try dltune on."""
