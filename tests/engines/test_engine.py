import pytest

from servetune.engines import ENGINES, engine
from servetune.errors import UnknownName


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_can_be_made_and_has_a_dialect(name):
    assert engine(name).name == name
    assert engine(name).words


def test_an_unknown_engine_is_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match="unknown engine 'vlm'") as caught:
        engine("vlm")
    assert "vllm" in caught.value.hint
