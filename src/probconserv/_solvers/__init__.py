"""Ways to solve Step 2, side by side; `engine.py` picks one."""
