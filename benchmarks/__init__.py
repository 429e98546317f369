"""Proofs by measurement: what dltune promises against what whole training runs give."""
