"""The templates of what is exported and reported, kept in `fuzz/templates`."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fuzz"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Source and Markdown are text; only a page has anything to escape.
        autoescape=lambda name: bool(name and name.endswith(".html.j2")),
    )


def render(template: str, **context: Any) -> str:
    """Fill in a template; a name it asks for and isn't given is an error."""
    return _environment().get_template(template).render(**context)
