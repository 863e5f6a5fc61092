"""Every quirk of the public G10 artifact as a named flag: one table for code, command line and documentation."""

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Quirks"]


def _quirk(sentence: str) -> bool:
    return Field(default=True, description=sentence)


class Quirks(BaseModel):
    """Flags, all on in the profile `artifact`; each can be switched off to see what it does to the numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # -- planner ----------------------------------------------------------------------------------------------------------

    # -- page rounds ------------------------------------------------------------------------------------------------------

    # -- tensor level -----------------------------------------------------------------------------------------------------

    # -- statistics -------------------------------------------------------------------------------------------------------

    faster_iteration: bool = _quirk(
        "Figures take the faster of the two simulated iterations, although the README says the second."
    )
