"""Many networks at once: what they share, what differs, and who trains them.

`rawnn.train_many` and `rawnn.search` are the public names (rawnn/many/training.py, search.py).
"""
