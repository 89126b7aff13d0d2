"""Ways to solve S lambda = r, side by side; `engine.py` picks one."""
