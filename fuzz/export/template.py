"""The templates of what is exported, kept beside this module."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fuzz.export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(template: str, **context: Any) -> str:
    """Fill in a template; a name it asks for and isn't given is an error."""
    return _environment().get_template(template).render(**context)
