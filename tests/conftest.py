"""What all tests share: results are kept in a folder of their own, so that nothing measured before is used."""

from collections.abc import Iterator

import pytest

from ident_utils import cache


@pytest.fixture(scope="session", autouse=True)
def own_results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "RESULTS", str(tmp_path_factory.mktemp("results")))
        yield
