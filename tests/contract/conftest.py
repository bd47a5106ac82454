"""The contract's asserts stand in the package; pytest shows their values only when it is told."""

import pytest

pytest.register_assert_rewrite("queuekit.testing.contract")
