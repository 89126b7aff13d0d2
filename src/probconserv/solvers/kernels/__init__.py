"""Step 2 and the budgets of fixers on a GPU, in Triton: never needed, the same to rounding."""
