import pytest

pytest.register_assert_rewrite("tests.fault.matrix")  # its asserts say what they compared
