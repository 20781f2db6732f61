"""The page, and the API described on another: nothing is built, nothing comes from elsewhere."""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

HERE: Final = Path(__file__).parent
KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_THERE: Final = sorted((HERE / "static").iterdir())
FILES: Final = {path.name: KINDS[path.suffix] for path in _THERE if path.suffix in KINDS}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> Response:
    """The page itself; it asks for a key by itself."""
    return Response((HERE / "index.html").read_bytes(), media_type="text/html")


@router.get("/docs")
async def api_page() -> Response:
    """The API's description as a page; it reads openapi.json by itself."""
    return Response((HERE / "docs.html").read_bytes(), media_type="text/html")


@router.get("/favicon.ico")
async def icon() -> Response:
    return Response((HERE / "static" / "icon.svg").read_bytes(), media_type="image/svg+xml")


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """One of the files that were there at the start, and no other."""
    if name not in FILES:
        raise HTTPException(404)
    return Response((HERE / "static" / name).read_bytes(), media_type=FILES[name])
