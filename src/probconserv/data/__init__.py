"""What to learn from: exact solutions at random points, and functions on grids of any origin."""

from ._collate import collate as collate
from ._functions import Functions as Functions
from ._functions import Layout as Layout
from ._functions import Points as Points
from ._functions import Shuffled as Shuffled
from ._functions import Split as Split
from ._functions import Stream as Stream
from ._functions import draw as draw
from ._grids import Grids as Grids
