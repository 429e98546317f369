"""Whole training runs in processes of their own: the truth that dltune's figures are held against."""
