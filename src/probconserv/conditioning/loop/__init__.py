"""Inequalities, and laws that are not linear: a loop around the linear solve."""
