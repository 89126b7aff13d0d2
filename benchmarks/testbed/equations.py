"""The equations of the test bed, their grids and where their trajectories begin.

Every domain is periodic. Coefficients have the names of the arguments of exponax.
"""

from dataclasses import dataclass, field

Range = tuple[float, float]

STEPS = 60  # of a test trajectory, from states 0 to 60
TRAINING_STEPS = 50
FUNCTIONS, COMPLETE, VALIDATION = 320, 40, 20  # COMPLETE: test trajectories stored with all steps
HORIZONS = (0, 1, 2, 5, 10, 20, 40, 60)  # steps at which all test functions are stored
ONE_STEP = tuple(range(0, 60, 6))  # times of validation states from which one step is predicted


@dataclass(frozen=True)
class Start:
    """Where trajectories begin: random numbers of a Fourier series, uniform in ranges.

    waves: offset (either sign) + amplitude * series of maximum 1.
    peaks: the series moved and scaled so that its least value is `offset`, its largest `amplitude`.
    bumps: v = 1 - prod (1 - amplitude * bump) and u = 1 - v, `modes` bumps.
    """

    modes: int
    amplitude: Range
    offset: Range = (0.0, 0.5)
    kind: str = "waves"


@dataclass(frozen=True)
class Equation:
    """An equation, a stepper of exponax (or of data.py) and the sets of trajectories.

    extent: length of the domain. dt: time between states. substeps: of the solver, per state.
    warmup: states left out before the first one. scaled: factor on the deviation from the mean
    after the warm-up, beyond the range.
    """

    formula: str
    stepper: str
    coefficients: dict
    extent: float
    dt: float
    inside: Start
    beyond: Start
    points: int = 96
    dims: int = 1
    channels: int = 1
    substeps: int = 10
    warmup: int = 0
    scaled: float = 1.0
    training: int = 60
    horizons: tuple[int, ...] = field(default=(1, 5, 10, 20, 60))  # at which networks are stored

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels, *(self.points,) * self.dims)


EQUATIONS = {
    "advection": Equation(
        "u_t + c u_x = 0",
        "Advection",
        {"velocity": 0.23},
        extent=1.0,
        dt=0.1,
        inside=Start(8, (0.5, 1.0)),
        beyond=Start(8, (1.0, 1.6), (0.5, 0.8)),
        substeps=1,
    ),
    "burgers": Equation(
        "u_t + b (u^2 / 2)_x = nu u_xx",
        "Burgers",
        {"diffusivity": 0.0015, "convection_scale": 0.125, "conservative": True},
        extent=1.0,
        dt=0.1,
        inside=Start(5, (0.5, 1.0)),
        beyond=Start(5, (1.0, 1.6), (0.5, 0.8)),
    ),
    "kdv": Equation(
        "u_t - 3 (u^2)_x + u_xxx = 0",
        "KortewegDeVries",
        {},
        extent=32.0,
        dt=0.1,
        inside=Start(5, (0.5, 1.0)),
        beyond=Start(5, (1.0, 1.6), (0.5, 0.8)),
        points=128,
        substeps=160,
    ),
    "kuramoto_sivashinsky": Equation(
        "u_t + (u^2 / 2)_x + u_xx + u_xxxx = 0",
        "KuramotoSivashinskyConservative",
        {"conservative": True},
        extent=60.0,
        dt=0.5,
        inside=Start(5, (1.0, 1.0)),
        beyond=Start(5, (1.0, 1.0), (0.5, 0.8)),
        warmup=200,
        scaled=1.6,
    ),
    "fisher": Equation(
        "u_t = nu u_xx + r u (1 - u)",
        "reaction.FisherKPP",
        {"diffusivity": 0.004, "reactivity": 20.0},
        extent=1.0,
        dt=0.002,
        inside=Start(5, (0.3, 0.7), (0.0, 0.05), "peaks"),
        beyond=Start(9, (0.7, 1.0), (0.0, 0.05), "peaks"),
    ),
    "gray_scott": Equation(
        "u_t = nu1 u_xx + f (1 - u) - u v^2, v_t = nu2 v_xx - (f + k) v + u v^2",
        "reaction.GrayScott",
        {"diffusivity_1": 4e-4, "diffusivity_2": 2e-4, "feed_rate": 0.04, "kill_rate": 0.06},
        extent=1.0,
        dt=2.0,
        inside=Start(2, (0.4, 0.7), kind="bumps"),
        beyond=Start(3, (0.7, 0.95), kind="bumps"),
        channels=2,
        warmup=3,
        horizons=(1, 10, 60),
    ),
    "advection_diffusion_2d": Equation(
        "u_t + c . grad u = nu laplace u",
        "AdvectionDiffusion",
        {"velocity": (0.25, -0.15), "diffusivity": 0.0005},
        extent=1.0,
        dt=0.1,
        inside=Start(5, (0.5, 1.0)),
        beyond=Start(5, (1.0, 1.6), (0.5, 0.8)),
        points=24,
        dims=2,
        substeps=1,
        training=12,
        horizons=(1, 10, 60),
    ),
    "navier_stokes_2d": Equation(
        "w_t + (velocity of w) . grad w = nu laplace w",
        "NavierStokesVorticity",
        {"diffusivity": 0.001},
        extent=1.0,
        dt=0.1,
        inside=Start(3, (1.0, 2.0)),
        beyond=Start(3, (2.0, 3.2), (0.5, 0.8)),
        points=24,
        dims=2,
        training=32,
        horizons=(1, 10, 60),
    ),
}
