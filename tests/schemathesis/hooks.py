"""Texts of configuration files, which schemathesis cannot make by itself: its values as they are."""

import schemathesis


@schemathesis.serializer("application/toml")
def toml(context, value):
    return value if isinstance(value, bytes) else str(value).encode()
