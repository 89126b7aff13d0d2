"""Step 2: `condition.py` is the update on a page; what it returns stands beside it."""
