"""The choices of construction on which paper, released code and careful practice differ (construction spec)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.errors import one_of


class Choices(BaseModel):
    """One value a choice.

    Attributes:
        boundary: `bands`, the released fixed bands; `closest`, the paper's nearest to the threshold (section 3); or
            `none`, no rule, as for shifted members (section 8).
        title: whether the title stands before a Stack Exchange question (fact 7).
        first_token_variant: whether a window is asked a second time with its first piece's word-start mark toggled
            (section 4, step 4).
        stale_loss: whether the first comparison of annealing's second phase uses the loss of the random start, as the
            released code does (section 7).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    boundary: Literal["bands", "closest", "none"] = "bands"
    title: bool = True
    first_token_variant: bool = True
    stale_loss: bool = False


PRESETS = {
    "audited": Choices(),
    "paper": Choices(boundary="closest", first_token_variant=False),
    "release": Choices(title=False, stale_loss=True),
}


def preset(name: str) -> Choices:
    """The choices of a name.

    Raises:
        UsageError: no such preset.
    """
    if name not in PRESETS:
        raise one_of("preset", name, PRESETS)
    return PRESETS[name]
