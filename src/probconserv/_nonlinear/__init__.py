"""Laws that are not linear: any differentiable function of the fields has a known value."""
