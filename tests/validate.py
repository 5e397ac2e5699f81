"""Validate a crate without network, in the environment of validator.txt.

python validate.py <crate> <file for the cache> <profile>...
"""

from __future__ import annotations

import io
import sys
from importlib import resources

import requests_cache
import urllib3
from requests.adapters import HTTPAdapter
from rocrate_validator.models import ValidationSettings
from rocrate_validator.services import validate

CONTEXT = "https://w3id.org/ro/crate/1.1/context"


class Kept(HTTPAdapter):
    """An adapter that answers with the JSON-LD context shipped with rocrate."""

    def send(self, request, **_):
        body = io.BytesIO((resources.files("rocrate") / "data/ro-crate.jsonld").read_bytes())
        told = {"headers": {"Content-Type": "application/ld+json"}, "preload_content": False}
        return self.build_response(request, urllib3.HTTPResponse(body, status=200, **told))


def main() -> None:
    crate, cache, *profiles = sys.argv[1:]
    with requests_cache.CachedSession(cache, backend="sqlite") as session:
        session.mount(CONTEXT, Kept())
        assert session.get(CONTEXT).json()["@id"] == CONTEXT
    for profile in profiles:
        settings = ValidationSettings(
            rocrate_uri=crate,
            profile_identifier=profile,
            requirement_severity="REQUIRED",
            offline=True,
            cache_path=cache,
        )
        for issue in validate(settings).get_issues():
            print(f"{profile}: {issue.violatingEntity}: {issue.message}")


if __name__ == "__main__":
    main()
