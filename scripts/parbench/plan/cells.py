"""The plan as the rules and other rooms use it."""

from parbench.plan.config import hardware
from parbench.plan.expansion import Lacking, Plan, lacking_as_planned, lacking_here, plan
from parbench.plan.forecast import forecast
from parbench.plan.places import RESULTS, folder, published_files
from parbench.plan.state import code_digest, described_data, image_of, source_digest, state
from parbench.plan.writing import progress_entries, write, write_progress

__all__ = [
    "RESULTS", "Lacking", "Plan", "code_digest", "described_data", "folder", "forecast", "hardware",
    "image_of", "lacking_as_planned", "lacking_here", "plan", "progress_entries",
    "published_files", "source_digest", "state", "write", "write_progress",
]  # fmt: skip
