"""Searches for what is fastest on this machine, and stores it for `best` and `tune`."""
