"""The page, and the API described on another: nothing is built, nothing comes from elsewhere."""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

HERE: Final = Path(__file__).parent
FILES: Final = {
    "style.css": "text/css",
    "app.js": "text/javascript",
    "api.js": "text/javascript",
    "detail.js": "text/javascript",
    "docs.css": "text/css",
    "docs.js": "text/javascript",
    "output.js": "text/javascript",
    "parts.js": "text/javascript",
    "schedules.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}

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
    """One of the files named above, and no other."""
    if name not in FILES:
        raise HTTPException(404)
    return Response((HERE / "static" / name).read_bytes(), media_type=FILES[name])
