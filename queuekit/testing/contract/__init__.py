"""The contract of a backend as tests: subclass `BackendContract`, say how a backend is opened, and let pytest run it.

    class TestMine(BackendContract):
        @pytest.fixture
        def open_backend(self, tmp_path):
            with contextlib.ExitStack() as stack:
                yield lambda **options: stack.enter_context(contextlib.closing(MyBackend(tmp_path, **options)))

Every backend that `open_backend()` returns within one test works on the same store, which is empty at first; `options`
are those of the backends here (`max_job_bytes`). Say `shares_streams = True` where many may work one stream at a time.
Needs pytest; nothing but tests may import it. For readable failures, call
`pytest.register_assert_rewrite("queuekit.testing.contract")` in a conftest.py before.
"""

from queuekit.testing.contract.base import Opener
from queuekit.testing.contract.checkpointing import CheckpointContract
from queuekit.testing.contract.claiming import ClaimingContract
from queuekit.testing.contract.deferring import DeferringContract
from queuekit.testing.contract.leasing import LeasingContract
from queuekit.testing.contract.listing import ListingContract
from queuekit.testing.contract.people import PeopleContract
from queuekit.testing.contract.sending import SendingContract
from queuekit.testing.contract.settling import SettlingContract
from queuekit.testing.contract.through_facade import FacadeContract
from queuekit.testing.contract.transferring import TransferringContract
from queuekit.testing.contract.waking import WakingContract


class BackendContract(
    SendingContract,
    ClaimingContract,
    SettlingContract,
    DeferringContract,
    PeopleContract,
    ListingContract,
    LeasingContract,
    WakingContract,
    CheckpointContract,
    TransferringContract,
    FacadeContract,
):
    """All of it."""


__all__ = ["BackendContract", "Opener"]
