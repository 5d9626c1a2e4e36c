"""What `import crossknn` offers: few names for those who search, `extend` for those who extend it."""

import crossknn
from crossknn import extend


def test_every_public_name_is_there():
    for home in (crossknn, extend):
        assert all(getattr(home, name) is not None for name in home.__all__)
    assert dir(crossknn) == sorted(crossknn.__all__)


def test_they_are_few():
    assert len(crossknn.__all__) <= 43
    assert len(extend.__all__) <= 20
    assert not {*crossknn.__all__} & {*extend.__all__}
