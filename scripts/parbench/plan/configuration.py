"""Pydantic models of config.yaml, which says what to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from parbench import models
from parbench.cell import Hardware, Options
from parbench.data import source
from parbench.deploy import deployment
from parbench.deploy.deployment import Deployment
from parbench.deploy.recipes import ImageSettings
from parbench.errors import ParbenchError
from parbench.plan.config_layers import ConfigLayers
from parbench.plan.settings import Layer
from parbench.plan.strict_model import (
    AS_WRITTEN,
    Distinct,
    Form,
    Name,
    Seed,
    Sha256,
    StrictModel,
    Whole,
    explained,
    with_optional_fields,
    wrong,
)
from parbench.plan.yaml_file import Key, Yaml, dotted, missing_key, unknown_value, words_of
from parbench.words import brief

YEAR = 31_536_000  # in seconds
# A process that drives a GPU runs kernel launches, autograd and NCCL in separate threads.
CORES_PER_GPU = 4
Seconds = Annotated[float, Field(gt=0, le=YEAR), AS_WRITTEN]
Short = Annotated[str, Field(min_length=1, max_length=100)]
Seeds = Annotated[list[Seed], Field(min_length=1), Distinct]


class BuildArguments(StrictModel):
    """Build arguments of the recipes in containers/."""

    bootstrap: Literal["debootstrap", "docker"] | None = Field(
        None,
        description="how the base image is made: debootstrap (from a Debian mirror) or docker "
        "(from a registry's image)",
    )
    from_: Annotated[str, Form(r"^\S+@sha256:[0-9a-f]{64}$", "name@sha256:<64 digits>")] | None = (
        Field(
            None,
            alias="from",
            description="with bootstrap docker: an image with its digest, name@sha256:<64 digits>",
        )
    )
    # An address must not contain a user name: the image would keep it.
    mirror: (
        Annotated[
            str,
            Form(
                r"^https?://[A-Za-z0-9._~:%-]+(/[A-Za-z0-9._~:/?#@%+,=-]*)?$",
                "an http or https address without a user name",
            ),
        ]
        | None
    ) = Field(
        None,
        description="a Debian mirror, without user name and password; default: this machine's",
    )
    gpu: Literal["none", "nccl"] | None = Field(
        None,
        description="whether Horovod supports GPUs: none, or nccl (needs a CUDA development base)",
    )

    @model_validator(mode="after")
    def _begins(self) -> BuildArguments:
        docker = self.bootstrap == "docker"
        if docker and self.from_ is None:
            raise wrong(
                ["bootstrap"],
                "docker also needs `from`: a registry image pinned by its digest (docs/images.md)",
            )
        if self.from_ is not None and not docker:
            raise wrong(
                ["from"],
                "applies to bootstrap: docker only; set that, or remove this (docs/images.md)",
            )
        if self.gpu == "nccl" and not docker:
            raise wrong(
                ["gpu"],
                "nccl needs a CUDA development image as base: bootstrap: docker and `from` "
                "(docs/images.md)",
            )
        return self


class Images(StrictModel):
    """Settings of Apptainer images (docs/images.md)."""

    arguments: BuildArguments = Field(description="build arguments of the recipes in containers/")
    unpack: bool = Field(
        description="whether images are unpacked in the cache: cells start sooner, at twice the "
        "disk space"
    )

    @property
    def settings(self) -> ImageSettings:
        """These settings, for programs that must not import pydantic."""
        stated = self.arguments.stated()
        arguments = {key: value for key, value in stated.items() if value is not None}
        return ImageSettings(arguments, self.unpack)


class Nodes(StrictModel):
    """How the nodes of one cell reach each other."""

    interface: Annotated[str, Form("^[A-Za-z0-9_.:-]+$", "the name of an interface")] | None = (
        Field(
            description="network interface between nodes, such as ib0; null: the one "
            "through which the first node's host name is reached"
        )
    )
    connect_seconds: Seconds = Field(
        description="seconds within which all nodes must start and reach each other"
    )


class Slurm(StrictModel):
    """How cells become Slurm jobs."""

    partition: Short | None = Field(description="partition for cells; null: the site's default")
    account: Short | None = Field(description="account to charge; null: the user's default")
    qos: Short | None = Field(description="quality of service; null: none")
    constraint: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        description="features that a node must have, in the syntax of sbatch --constraint"
    )
    gpus: Literal["gpu", "gres"] = Field(
        description="how GPUs are requested at this site: gpu (--gpus-per-node=...) or gres "
        "(--gres=gpu:...)"
    )
    memory_mib: Whole = Field(
        description="memory to request in MiB per device: a node gets this times its number of "
        "devices"
    )
    minutes: Annotated[int, Field(ge=1, le=365 * 24 * 60)] | None = Field(
        description="walltime of a cell in minutes; null: from earlier runs, or from the size of "
        "the cell"
    )
    least_samples_per_second: Annotated[float, Field(ge=0.001), AS_WRITTEN] = Field(
        description="slowest training speed that the walltime must allow for without earlier runs"
    )
    exclusive: bool = Field(
        description="whether a cell's job gets whole nodes, which run no other jobs"
    )
    prepare: Short = Field(
        description="where datasets, images, tables and reports are made: submit (where Snakemake "
        "runs), or a partition"
    )


class Spark(StrictModel):
    """The Spark cluster of cells with `cluster: true` (docs/spark.md)."""

    master: (
        Annotated[
            str, Form(r"^(spark://\S+|yarn|k8s://\S+)$", "spark://host:port, yarn or k8s://...")
        ]
        | None
    ) = Field(description="the cluster's address, such as spark://host:7077; null: no cluster")
    conf: dict[
        Annotated[str, Form(r"^spark\.", "a setting of Spark, which begins with spark.")], str
    ] = Field(
        description="Spark's own settings, such as {spark.executor.memory: 4g}; they override "
        "parbench's"
    )


class Python(StrictModel):
    """The user's own Python, with its packages."""

    python: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="path of a Python 3.11 or newer with torch, torchvision, numpy and "
        "safetensors, which runs the ranks of cells"
    )


class StatedMachine(StrictModel):
    """The resources of a machine."""

    cpu: Whole = Field(description="number of processor cores")
    cuda: dict[str, Annotated[int, Field(ge=0)]] | None = Field(
        None, description="number of GPUs by model, such as {A100: 2}"
    )


class HardwareSlurm(with_optional_fields(Slurm)):
    """How cells on one entry of `hardware` become Slurm jobs, where this differs from `slurm`."""


class HardwareEntry(StrictModel):
    """The hardware that a cell runs on."""

    device: Literal["cpu", "cuda", "mps"] = Field(
        description="kind of device: cpu, cuda, or mps (Apple's GPU, on which no cell runs yet; "
        "for a source's hardware)"
    )
    devices: Whole = Field(description="number of devices on each node")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None,
        description="cores of each CPU device (default: 1), used by parallel operators, or for the "
        f"process that drives each GPU (default: {CORES_PER_GPU})",
    )
    nodes: Whole = Field(1, description="number of nodes")
    gpu_model: Short | None = Field(
        None, description="part of the GPU's name, such as A100; default: any model"
    )
    slurm: HardwareSlurm | None = Field(
        None, description="settings that override the common `slurm`"
    )

    @model_validator(mode="after")
    def _fits_its_device(self) -> HardwareEntry:
        if self.device == "cpu" and self.gpu_model:
            raise ValueError(
                f"gpu_model {self.gpu_model!r} does not apply to device cpu; remove it, or choose "
                "device: cuda"
            )
        return self

    def with_name(self, name: str) -> Hardware:
        """Return this entry of config.yaml as the `hardware` of a cell."""
        threads = self.threads or (1 if self.device == "cpu" else CORES_PER_GPU)
        return Hardware(name, self.device, self.devices, threads, self.nodes, self.gpu_model)


class Weights(StrictModel):
    """Published weights of a model."""

    model: Annotated[str, Form("^[a-z][a-z0-9_]*$", "the name of a model of parbench")] = Field(
        description="the model: a file scripts/parbench/models/<name>.py"
    )
    options: Options | None = Field(
        None, description="options of the model that differ from their defaults"
    )
    network: (
        Annotated[
            str, Form("^(torchvision|timm)/[a-zA-Z0-9_.]+$", "torchvision/<name> or timm/<name>")
        ]
        | None
    ) = Field(
        None,
        description="the library's name of the network whose tensor names the file has; omit it "
        "for a text model, which is from the transformers library",
    )
    image_size: Annotated[int, Field(ge=8)] | None = Field(
        None,
        description="side of the images that it was trained with, in pixels; none for a model of "
        "texts",
    )
    urls: Annotated[
        list[
            Annotated[
                str,
                Form(
                    "^(https?://[^/@]+/|file:///).",
                    "http://, https:// or file:///, and no user name",
                ),
            ]
        ],
        Field(min_length=1),
        Distinct,
    ] = Field(description="mirrors, tried in turn, of a safetensors file or one saved by PyTorch")
    size: Whole = Field(description="size of the file in bytes")
    sha256: Sha256 = Field(description="SHA-256 of the file")

    @model_validator(mode="after")
    def _of_images_or_texts(self) -> Weights:
        takes_texts = self.model in models.names() and models.vocabulary(self.model) is not None
        if takes_texts != (self.network is None) or takes_texts != (self.image_size is None):
            raise ValueError(
                f"network {words_of(self.network)}, image_size {words_of(self.image_size)}: "
                + (
                    f"{self.model} is a text model, which has neither; remove both"
                    if takes_texts
                    else f"{self.model} is an image model, which needs both; set both"
                )
            )
        return self


class Override(StrictModel):
    """Changes to one study."""

    dataset: str | None = Field(None, description="a dataset instead of the study's")
    seeds: Seeds | None = Field(None, description="seeds instead of the study's")
    settings: Layer = Field({}, description="settings that override all of the study's")
    hardware: dict[str, str] = Field(
        {},
        description="hardware instead of the study's, by the study's name for it, such as "
        "{a100x1: gpu1}",
    )


# An entry of `datasets` or `weights`; which keys it has depends on its kind.
Entry = dict[str, Any]


def _of_its_kind(entry: Entry) -> Entry:
    """Check an entry of ``datasets`` by the class of its kind, and return it."""
    if "kind" not in entry:
        raise wrong([], missing_key("kind", "where its samples come from"))
    kinds = source.kinds()
    if entry["kind"] not in kinds:
        raise wrong(["kind"], unknown_value(entry["kind"], kinds))
    kind = source.load(entry["kind"])
    explained(kind, entry, kind.model_validate)
    return entry


# A path is read as the name of its file; an editor takes both.
StudyName = Annotated[Name, WithJsonSchema({"type": "string", "minLength": 1})]


class Config(StrictModel):
    """config.yaml with all changes laid over it."""

    studies: Annotated[list[StudyName], Field(min_length=1), Distinct] = Field(
        description="studies to run, each the name of a file studies/<name>.yaml or the path of a "
        "file elsewhere, which has its values and claims in a folder published/ beside it"
    )
    stack: Name = Field(description="software versions, a folder containers/locks/<stack>/")
    deployment: Annotated[
        Annotated[Literal["auto", "apptainer", "host"], Tag("=named")]
        | Annotated[Python, Tag("=python")],
        Discriminator(lambda value: "=python" if isinstance(value, (dict, Python)) else "=named"),
    ] = Field(
        description="where a cell's software comes from: apptainer (an image), host (this "
        "machine's environment), auto (images if Apptainer runs here and they are built, else the "
        "host), or {python: <path>} (your own Python, with its packages)"
    )
    images: Images = Field(description="settings of the images (docs/images.md)")
    budget_minutes: Annotated[float, Field(ge=0), AS_WRITTEN] = Field(
        description="minutes that `make report` may spend on further measurements of what is "
        "undecided"
    )
    timeout_seconds: Seconds = Field(
        description="seconds without progress after which a rank counts as hung and its cell is "
        "ended"
    )
    checkpoint_seconds: Seconds = Field(description="seconds between two checkpoints of a cell")
    grace_seconds: Annotated[float, Field(ge=0, le=YEAR), AS_WRITTEN] = Field(
        description="seconds for a last checkpoint when a cell is asked to end (Ctrl-C, scancel, "
        "preemption, the end of its walltime)"
    )
    nodes: Nodes = Field(description="how the nodes of one cell reach each other")
    slurm: Slurm = Field(
        description="how cells become Slurm jobs; `slurm` of an entry of `hardware` overrides it "
        "key by key (docs/slurm.md)"
    )
    spark: Spark = Field(description="the Spark cluster, for cells with `cluster: true`")
    available: Annotated[
        Annotated[Literal["auto"], Tag("=auto")] | Annotated[StatedMachine, Tag("=stated")],
        Discriminator(
            lambda value: "=stated" if isinstance(value, (dict, StatedMachine)) else "=auto"
        ),
    ] = Field(description="resources that cells are planned for; auto: those of this machine")
    hardware: Annotated[dict[Name, HardwareEntry], Field(min_length=1)] = Field(
        description="hardware that cells run on, by name"
    )
    datasets: Annotated[
        dict[Name, Annotated[Entry, AfterValidator(_of_its_kind)]], Field(min_length=1)
    ] = Field(
        description="where each dataset comes from; its kind, a file of "
        "scripts/parbench/data/kinds/, defines its keys"
    )
    weights: dict[Name, Weights] = Field(
        description="published weights of models, for `pretrained: true` in a study"
    )
    override: dict[Name, Override] = Field(
        description="changes to a study without editing its file, by study"
    )

    _layers: ConfigLayers = PrivateAttr()

    @classmethod
    def of(cls, layers: ConfigLayers, studies: Yaml = None) -> Config:
        """Return the configuration that ``layers`` state; ``studies`` replace those there.

        Raises pydantic.ValidationError.
        """
        content = layers.merged()
        config = cls.model_validate(content | {"studies": studies} if studies else content)
        config._layers = layers
        return config

    @property
    def layers(self) -> ConfigLayers:
        """Return the files and options that state this configuration."""
        return self._layers

    def set_in(self, *keys: Key) -> str:
        """Return the file or option that sets the key reached by ``keys``, for a message."""
        return self._layers.last_that_sets(keys).name

    def error(self, keys: Sequence[Key], sentence: str) -> ParbenchError:
        """Return the error for the value that ``keys`` lead to, in the file that sets it."""
        return ParbenchError(f"{self.set_in(*keys)}: {dotted(keys)}: {sentence}")

    @field_validator("deployment", mode="before")
    @classmethod
    def _is_no_path(cls, value: object) -> object:
        if isinstance(value, str) and "/" in value:
            fix = f"to use your own Python, write {{python: {brief(value)}}}"
            raise wrong([], f"value {brief(value)!r} is a path; {fix}")
        return value

    def resolved_deployment(self, typed: bool = False) -> Deployment:
        """Return where cells' software comes from on this machine.

        ``typed``: whether `--sdm apptainer` is on the command line. Raises ParbenchError if images
        or the Python cannot run.
        """
        where, settings = self.set_in("deployment"), self.images.settings
        if isinstance(self.deployment, Python):
            return deployment.of_python(self.deployment.python, settings, where)
        return deployment.resolve(self.deployment, self.stack, settings, where, typed)

    def slurm_of(self, hardware: str) -> Slurm:
        """Return `slurm` with the overrides of the entry ``hardware``."""
        own = self.hardware[hardware].slurm
        return self.slurm if own is None else self.slurm.model_copy(update=own.stated())
