"""What is known of images is written over, by host and name."""

import pytest
from msgspec.structs import replace

from standby.core.sighting import ImageState
from standby.store.contract import Store

pytestmark = pytest.mark.anyio


async def test_the_last_word_about_an_image_on_a_host_is_kept(store: Store) -> None:
    pulling = ImageState(host="h", image="b:1", at=5, present=False, pulling_since=4, progress="layer 1 of 3")
    other = ImageState(host="h", image="a:1", at=6, present=False, error="no such image")
    await store.put_image(pulling)
    await store.put_image(other)
    await store.put_image(replace(pulling, host="elsewhere"))
    there = replace(pulling, at=9, present=True, pulling_since=None, progress=None)
    await store.put_image(there)

    assert await store.images("h") == [other, there]
    assert await store.images("nowhere") == []
