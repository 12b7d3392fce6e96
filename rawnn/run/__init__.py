"""A run: what is asked for, how it goes, and what is kept of it."""
