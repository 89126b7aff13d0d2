"""How near is the same in files: every small number, with what it promises."""

CLOSES = 1e-6  # of the sum of |u| times cell sizes: a budget closes that is off by no more
SINGLE = 1e-6  # of a value: what is stored in single precision may differ by so much
DOUBLE = 1e-9  # of a sum of cell sizes, or degrees of latitude: rounding in double precision
STORED = 2.0**-23  # of a value: float32 holds no more
STEP = 1e-4  # of a step between places, or degrees: places that are so near are the same
CIRCLE = 1e-5  # of 360 degrees: cells may cover so much more
LONGITUDE = 2.5e-5  # degrees: float32 keeps 1.5e-5, so do 200 and 200 - 360
UNIT = 1e-14  # of a factor between units: two units so near are one
MET = 1e-14  # of a row's terms: a total within bounds that is off by less is met
REACH = 1e-12  # of a row's terms: a total so little out of reach is taken as the end of it
NOTHING = 1e-15  # of a variance: what is left of it by subtraction is no more than rounding
