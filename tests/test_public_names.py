"""What `import crossknn` offers."""

from __future__ import annotations

import crossknn


def test_every_public_name_is_there():
    for name in crossknn.__all__:
        assert getattr(crossknn, name) is not None, name
    assert dir(crossknn) == sorted(crossknn.__all__)
