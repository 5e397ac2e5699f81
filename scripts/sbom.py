"""An image's bill of materials, in CycloneDX: every Python and Debian package, by version."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot5
from packageurl import PackageURL

from files import write_atomically


def write(path: Path, facts: dict, epoch: int) -> None:
    """Write the bill of an image; ``facts`` as scripts/images.py keeps them.

    ``epoch``: the second of 1970 that stands for every time in the image. Equal content gives an
    equal bill.
    """
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"parbench:{facts['key']}"))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = Component(
        name=facts["label"],
        version=facts["key"][:12],
        type=ComponentType.CONTAINER,
        bom_ref=facts["label"],
    )
    packages = [("pypi", None, name, version, {}) for name, version in facts["packages"].items()]
    packages += [
        ("deb", "debian", name, version, {"arch": architecture})
        for name, version, architecture in facts["debian"]
    ]
    for kind, namespace, name, version, qualifiers in sorted(packages, key=lambda p: p[:4]):
        purl = PackageURL(kind, namespace, name, version, qualifiers)
        component = Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=purl.to_string(),
        )
        bom.components.add(component)
        bom.register_dependency(bom.metadata.component, [component])
    write_atomically(path, JsonV1Dot5(bom).output_as_string(indent=1))
