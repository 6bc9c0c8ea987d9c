"""Matched members: simulated annealing on tokens and dates (construction spec, section 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from olmodetect_jax.construction import annealing_kernel as kernel
from olmodetect_jax.construction.candidates import Texts, shuffled
from olmodetect_jax.construction.dates import temporal_term
from olmodetect_jax.construction.jsd import divergence_of_texts
from olmodetect_jax.errors import DataError, OlmoDetectError

_BLOCK = 1 << 16  # proposals that are drawn at once; part of what a seed means
_CHECK_EVERY = 16  # blocks between two comparisons of the sums with the counts they stand for
_DRIFT = 1e-9  # largest difference of the loss, or share of a loss above 1, that rounding may have made in between


@dataclass(frozen=True)
class AnnealingSettings:
    """How to search.

    Attributes:
        n_steps: proposals.
        margin: tokens that members may differ from non-members.
        t0: temperature of the second phase at first.
        factor: of the temperature, after each accepted exchange of the second phase.
        seed: of the start and of the proposals.
        dates: whether dates count.
        stale_loss: whether exchanges of the first phase leave the loss as it was, as in the released code.
    """

    n_steps: int = 10_000_000
    margin: int = 250
    t0: float = 1e-3
    factor: float = 0.999995
    seed: int = 42
    dates: bool = True
    stale_loss: bool = False


@dataclass(frozen=True, eq=False)
class Matched:
    """The members found.

    Attributes:
        chosen: positions in the pool, sorted: int64.
        jsd: divergence of their tokens from the non-members', bits.
        temporal: the temporal term.
        loss: the sum of both.
        gap: tokens they have more than the non-members.
        start_loss: loss of the random start.
        exchanges: in the first phase.
        accepted: exchanges in the second.
        drift: largest difference found between the loss kept up and the loss computed anew; a share of a loss above 1.
    """

    chosen: np.ndarray
    jsd: float
    temporal: float
    loss: float
    gap: int
    start_loss: float
    exchanges: int
    accepted: int
    drift: float


def anneal(
    pool: Texts,
    non_members: Texts,
    settings: AnnealingSettings,
    *,
    name: str,
    report: Callable[[int], None] = lambda done: None,
) -> Matched:
    """Chooses as many members as there are non-members, alike in tokens and dates.

    Args:
        pool: candidates.
        non_members: the chosen ones.
        settings: of the search.
        name: of the subset, for messages.
        report: is told how many more steps are done.

    Returns:
        The state after the last step (not the best seen).

    Raises:
        DataError: the pool is too small, a class has no tokens, or the margin cannot be or was not met; says how far.
    """
    n, target = len(non_members.ids), int(non_members.n_tokens.sum())
    check_reachable(pool.n_tokens, n, target, settings.margin, name=name)
    start = shuffled(pool.keys, settings.seed, "annealing")
    search = Search(pool, non_members, settings, start[:n], start[n:])
    start_loss = search.loss
    if len(pool.ids) > n:
        _search(search, settings, name, report)
    chosen, gap = np.sort(search.chosen), search.tokens - target
    if abs(gap) > settings.margin:
        raise DataError(
            f"{name}: after {settings.n_steps:,} steps the members have {abs(gap):,} tokens "
            f"{'more' if gap > 0 else 'fewer'} than the non-members, at most {settings.margin:,} are allowed; "
            "add candidates, or raise the margin or the number of steps"
        )
    found = pool.take(chosen)
    jsd = divergence_of_texts(found.ids, non_members.ids)
    temporal = temporal_term(found.days, non_members.days) if settings.dates else 0.0
    return Matched(
        chosen, jsd, temporal, jsd + temporal, gap, start_loss, search.exchanges, search.accepted, search.drift
    )


def check_reachable(lengths: np.ndarray, n: int, target: int, margin: int, *, name: str) -> None:
    """Refuses a pool that cannot have n records of about the target's tokens.

    Raises:
        DataError: it is smaller than n, or its shortest or longest n records are too far from the target.
    """
    if len(lengths) < n:
        raise DataError(f"{name}: the pool holds {len(lengths)} members, {n} are needed; add candidates")
    ordered = np.sort(lengths)
    least, most = int(ordered[:n].sum()), int(ordered[len(ordered) - n :].sum())
    for found, far, which in ((least, least - target, "shortest"), (most, target - most, "longest")):
        if far > margin:
            raise DataError(
                f"{name}: the {n} {which} members of the pool have {found:,} tokens, {far:,} away from the "
                f"non-members' {target:,}; at most {margin:,} are allowed: add candidates of other lengths"
            )


def _search(search: Search, settings: AnnealingSettings, name: str, report: Callable[[int], None]) -> None:
    draws = np.random.Generator(np.random.PCG64(settings.seed))
    for block, done in enumerate(range(0, settings.n_steps, _BLOCK)):
        outs = draws.integers(0, len(search.chosen), _BLOCK)
        ins = draws.integers(0, len(search.rest), _BLOCK)
        uniforms = draws.random(_BLOCK)
        steps = min(_BLOCK, settings.n_steps - done)
        search.propose(outs[:steps], ins[:steps], uniforms)
        if block % _CHECK_EVERY == _CHECK_EVERY - 1 or done + steps == settings.n_steps:
            search.check(name)
        report(steps)


class Search:
    """The state of a search: counts, sums and what the compiled loop keeps.

    Attributes:
        chosen: positions of the members now, in no order: int64.
        rest: of the others.
        drift: largest difference found by `check`; a share of a loss above 1.
    """

    def __init__(
        self, pool: Texts, non_members: Texts, settings: AnnealingSettings, chosen: np.ndarray, rest: np.ndarray
    ):
        """Counts tokens; see `anneal`.

        Raises:
            DataError: a class has no tokens.
        """
        self.settings, self.drift = settings, 0.0
        self.chosen, self.rest = chosen.astype(np.int64), rest.astype(np.int64)
        self._pool_days = pool.days if settings.dates else np.full(len(pool.ids), np.nan)
        other_days = non_members.days if settings.dates else np.full(len(non_members.ids), np.nan)
        # Ordinals squared would lose the hours, so days count from the middle of the pool.
        dated = self._pool_days[~np.isnan(self._pool_days)]
        self._centre = float(dated.mean()) if len(dated) else 0.0
        self._days = self._pool_days - self._centre
        others = other_days[~np.isnan(other_days)] - self._centre
        self._target = np.array([others.mean(), others.std(), len(others)]) if len(others) else np.zeros(3)
        self._count(pool, non_members)
        self._state = np.zeros(10)
        self._state[kernel.TEMPERATURE] = settings.t0
        self._refresh()

    def _count(self, pool: Texts, non_members: Texts) -> None:
        """Counts of the tokens that non-members have; what only members have does not change the divergence."""
        self._lengths, self._n_others = pool.n_tokens, int(non_members.n_tokens.sum())
        if not self._n_others or not self._lengths[self.chosen].sum():
            raise DataError("the divergence of texts without a single token is not defined")
        vocabulary, self._others = np.unique(np.concatenate(non_members.ids), return_counts=True)
        texts = [np.unique(_shared(ids, vocabulary), return_counts=True) for ids in pool.ids]
        self._starts = np.cumsum([0, *(len(ids) for ids, _ in texts)])
        self._ids, self._counts = (np.concatenate([text[i] for text in texts]) for i in range(2))
        together = np.bincount(self._ids, self._counts, minlength=len(vocabulary)) + self._others
        self._logs = np.log2(np.maximum(np.arange(int(together.max()) + 1), 1).astype(np.float64))
        shares = self._others / self._n_others
        self._entropy = -float(np.sum(shares * np.log2(shares)))

    def _refresh(self) -> None:
        """Counts, sums and loss anew from the chosen texts."""
        a = np.zeros(len(self._others), np.int64)
        for i in self.chosen:
            span = slice(self._starts[i], self._starts[i + 1])
            a[self._ids[span]] += self._counts[span]
        self._members = a
        self._sums = kernel.all_sums(a, self._others, self._logs)
        dated = self._days[self.chosen]
        dated = dated[~np.isnan(dated)]
        self._state[[kernel.TOKENS, kernel.DAYS, kernel.DAYS_SQUARED, kernel.DATED]] = (
            self._lengths[self.chosen].sum(), dated.sum(), (dated**2).sum(), len(dated),
        )  # fmt: skip
        self._state[kernel.LOSS] = self.jsd() + self.temporal()

    def jsd(self) -> float:
        """Divergence of the members now, from the sums."""
        return kernel.divergence(
            self._sums,
            float(self.tokens),
            float(self._n_others),
            self._entropy,
            self._members,
            self._others,
            self._logs,
        )

    def temporal(self) -> float:
        """The temporal term of the members now."""
        sums = self._state[[kernel.DAYS, kernel.DAYS_SQUARED, kernel.DATED]]
        return kernel.temporal(*sums, self._target, self._days, self.chosen, -1, -1)

    def propose(self, outs: np.ndarray, ins: np.ndarray, uniforms: np.ndarray) -> None:
        """Works off proposals.

        Args:
            outs: [N] int64, places in `chosen`.
            ins: [N] int64, places in `rest`.
            uniforms: at least N numbers in [0, 1), taken from the first on where the rule draws one.
        """
        self._state[kernel.USED] = 0
        kernel.run(
            outs, ins, uniforms, self.chosen, self.rest, self._starts, self._ids, self._counts, self._lengths,
            self._days, self._members, self._others, self._logs, self._sums, float(self._n_others), self._entropy,
            self._target, float(self.settings.margin), self.settings.factor, self.settings.stale_loss, self._state,
        )  # fmt: skip

    def check(self, name: str) -> None:
        """Computes everything anew and compares.

        Raises:
            OlmoDetectError: the loss had drifted.
        """
        kept = self.loss
        self._refresh()
        if self.settings.stale_loss and not self.accepted:
            self._state[kernel.LOSS] = kept  # until the first exchange of the second phase it is the start's
        elif np.isfinite(kept):
            self.drift = max(self.drift, abs(kept - self.loss) / max(1.0, abs(kept)))
        if self.drift > _DRIFT:
            raise OlmoDetectError(f"{name}: the annealing's loss drifted by {self.drift:.3g}; please report this")

    @property
    def tokens(self) -> int:
        """Tokens of the members now."""
        return int(self._lengths[self.chosen].sum())

    @property
    def loss(self) -> float:
        """The loss kept up; NaN after exchanges of the first phase."""
        return float(self._state[kernel.LOSS])

    @property
    def temperature(self) -> float:
        """Of the second phase, now."""
        return float(self._state[kernel.TEMPERATURE])

    @property
    def change(self) -> float:
        """Of the loss, in the last proposal that was compared."""
        return float(self._state[kernel.CHANGE])

    @property
    def used(self) -> int:
        """Uniforms that the last call of `propose` took."""
        return int(self._state[kernel.USED])

    @property
    def exchanges(self) -> int:
        """Exchanges of the first phase."""
        return int(self._state[kernel.PHASE_1])

    @property
    def accepted(self) -> int:
        """Exchanges of the second phase."""
        return int(self._state[kernel.ACCEPTED])


def _shared(ids: np.ndarray, vocabulary: np.ndarray) -> np.ndarray:
    """Places in the vocabulary of those ids that are in it: int64."""
    places = np.searchsorted(vocabulary, ids)
    known = vocabulary[np.minimum(places, len(vocabulary) - 1)] == ids
    return places[known]
