"""Laws that are not linear: the most probable fields that obey them, and draws."""
