"""Step 2 on a GPU in few passes, written in Triton: never needed, and the same numbers."""
