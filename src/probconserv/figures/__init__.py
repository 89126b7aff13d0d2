"""Pictures of fields. Needs matplotlib, the extra `plots`."""

from ..support.extras import missing as _missing

try:
    import matplotlib as _matplotlib  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"figures need matplotlib: {_missing(error.name, 'plots')}", name=error.name
    ) from None

from ._fields import errors_figure as errors_figure
from ._fields import front_figure as front_figure
from ._fields import mass_figure as mass_figure
from ._fields import precision_figure as precision_figure
from ._fields import profiles_figure as profiles_figure
from ._fields import save as save
from ._fields import scores_figure as scores_figure
from ._maps import maps_figure as maps_figure
from ._reports import budget as budget
from ._reports import comparison_figure as comparison_figure
from ._reports import diagnosis as diagnosis
from ._reports import ledger_figure as ledger_figure
