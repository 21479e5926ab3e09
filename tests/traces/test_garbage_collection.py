"""Tests that the garbage collector is switched off and on again."""

from __future__ import annotations

import gc

import pytest

from traces.garbage_collection import without_garbage_collection


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_is_as_before_even_after_an_exception(was_on: bool) -> None:
    switched = {True: gc.enable, False: gc.disable}[was_on]
    switched()
    try:
        with pytest.raises(ValueError, match="fails"), without_garbage_collection():
            assert not gc.isenabled()
            raise ValueError("the code inside fails")
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
