"""Run folders, and how they survive a kill, a full disk or a second command: the names that other rooms use."""

from surefoot.lab.store.files import Busy as Busy
from surefoot.lab.store.files import StoreError as StoreError
from surefoot.lab.store.files import explained as explained
from surefoot.lab.store.files import open_folder as open_folder
from surefoot.lab.store.files import open_plain as open_plain
from surefoot.lab.store.files import read_plain as read_plain
from surefoot.lab.store.files import write_atomic as write_atomic
from surefoot.lab.store.horizons import HorizonRecord as HorizonRecord
from surefoot.lab.store.metrics import MetricsLog as MetricsLog
from surefoot.lab.store.metrics import read_metrics as read_metrics
from surefoot.lab.store.rows import Rows as Rows
from surefoot.lab.store.rows import column as column
from surefoot.lab.store.rows import last_epoch as last_epoch
from surefoot.lab.store.runs import Run as Run
from surefoot.lab.store.runs import check_place as check_place
from surefoot.lab.store.runs import claim as claim
from surefoot.lab.store.runs import is_done as is_done
from surefoot.lab.store.runs import is_recorded as is_recorded
from surefoot.lab.store.runs import read_run as read_run
from surefoot.lab.store.runs import read_runs as read_runs
from surefoot.lab.store.runs import record_directions as record_directions
from surefoot.lab.store.runs import write_config as write_config
