"""Measured numbers in the place of ours: what a running engine reports."""
