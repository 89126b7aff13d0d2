"""What may be off, and by how much: tolerances, with what users are told of each.

What ends the iterations of the fast ways of inequalities stands with these.

The promises are for values and standard deviations from 1e-30 to 1e30, and variances of one prior
over 12 decades.
"""

import sys

EPS = sys.float_info.epsilon  # of float64
ROUNDING = 4 * EPS
"""Of its terms: a sum of a few of them that is less is 0."""

HOLDS = 1e-12
"""Exact rows hold to this share of their terms, or of the standard deviations that they read."""

SETTLED = 1e-13
"""Of its terms: rounding is taken off an exact row until it misses by no more."""

UNMET = 1e-8
"""Of its terms: an exact row that misses by more is an error that names it."""

WEIGHED = 1e-6
"""Of the largest residual: a row with noise that is further from where it belongs is an error."""

DEPENDENT = 1e-14
"""Of its variance: an exact row that keeps less given the others follows from them."""

INDEPENDENT = 1e-11
"""Of its variance, or of its terms: a row or a coefficient that keeps more is not mere rounding."""

FOLLOWS = 1e-10
"""Of its variance: an exact row that is not met and keeps less is said to follow from others."""

EASY = 1e-6
"""Of its variance: rows that each keep more are taken as they come, and one that is less a part of
another is not named."""

SURE = 1e-6
"""Variances are right to this share of themselves, down to `FIXED` of the prior's, where rows do
not nearly repeat each other; what is less after bands or directions is computed again."""

ROUNDED = 1e-15
"""Of what it was taken from: what is left by subtraction is no more than rounding."""

FIXED = 1e-20
"""Of the prior's variance: a point of which exact rows leave less has variance 0."""

LEAKED = 1e-24
"""Of the prior's variance: if noise leaves more of a point, exact rows do not fix it."""

HALF_THE_DIGITS = 1e-8
"""Of what was there: a difference that is less has lost half of its digits and is not relied on."""

CONVERGED = 1e-9
"""Of a variance: a correction that changes no more is the last."""

EVEN = 1e-6
"""Of a step: points are evenly spaced if their steps differ by less."""

CERTAIN = 1e-10
"""Of a probability: a sum of such that is off by no more is reached."""

ALIKE = 1e-9
"""Of a mean score: ways that differ by no more are the same."""

TINY = 1e-290
"""A variance of no more has no inverse that float64 can hold."""

# Rows within bounds, a number for each.

MET = 1e-14
"""Of a row's terms: a total within bounds that is off by less is met."""

GRAIN = 4e-16
"""Of a multiplier: two that are closer are the same."""

# Places, cells and files.

CLOSES = 1e-6
"""Of the sum of |u| times cell sizes: the budget of a file closes that is off by no more."""

SINGLE = 1e-6
"""Of a value: what is stored in single precision may differ by so much."""

STORED = 2.0**-23
"""Of a value: float32 holds no more."""

DOUBLE = 1e-9
"""Of a sum of cell sizes, or degrees of latitude: rounding in double precision."""

STEP = 1e-4
"""Of a step between places, or degrees: places that are so near are the same."""

CIRCLE = 1e-5
"""Of 360 degrees: cells may cover so much more."""

THOUSANDTHS = 6e-4
"""Degrees: latitudes that were rounded to thousandths differ by no more."""

LONGITUDE = 2.5e-5
"""Degrees: float32 keeps 1.5e-5 of a longitude, so do 200 and 200 - 360."""

UNIT = 1e-14
"""Of a factor between units: two units so near are one."""

REACH = 1e-12
"""Of a row's terms: a total so little out of reach is taken as the end of it."""

# The loop: inequalities, and laws that are not linear.

STATIONARY = 1e-7
"""Of the way from the prior: the longest step that is left to the most probable field."""

ENOUGH_LOWER = 1e-4
"""Of the decrease that is expected: a step that brings less is shortened."""

GIVES = 1e-4
"""Of its variance, or of its miss squared if that is less: noise of an exact row as it is at a
point, where no field within inequalities obeys it; the next step looks again."""

STAYS = 1e-7
"""Standard deviations that laws leave: points of infinite variance that move by less stay."""

FINISHED = 1e-6
"""Of the squared distance: an interior point whose gap is less is finished by an active set."""

SHIFTS = (1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-8)
"""Of the variance of an exact row: what is added for a factor of rows that may repeat each other,
the least that will do; it is taken off again by refinement."""

SOLVED = 1e-10
"""Of the right side: conjugate gradients without a factor end there; then the field is solved once
more for what it misses."""

SMALL_SHARE = 1e-10
"""Of its prior variance: a row that keeps less is scaled as if it kept that."""

THIN = 1e-6
"""Of its variance: a point with less of its own is held with the directions that move it."""

INSIDE = 1e-10
"""Standard deviations that exact laws leave: an inequality that is broken by less holds, before
points go to their bounds."""

OPTIMAL = 1e-10
"""Of the least distance, squared: a field within inequalities that is no further away is the
nearest."""

FIXED_BY_LAWS = 1e-7
"""Of its standard deviation: a number of which exact laws leave less is fixed by them."""

UNREACHED = 1e-12
"""Of its terms, and of the standard deviations that it reads: an exact row that draws within
inequalities miss by more is an error."""

NEARLY_EXACT = 1e-13
"""Of its variance: noise of a row that is less cannot be weighed beside inequalities; its value,
with the noise drawn, is taken as exact, as near to it as bounds allow."""
