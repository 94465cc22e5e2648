import zlib

from hypothesis import given
from hypothesis import strategies as st

from cigl.sparsify.guards.fingerprints import _of_parts


@given(st.lists(st.binary(max_size=70), min_size=1, max_size=5))
def test_the_checksum_of_parts_is_that_of_the_whole(parts):
    assert _of_parts([(zlib.crc32(part), len(part)) for part in parts]) == zlib.crc32(b"".join(parts))
