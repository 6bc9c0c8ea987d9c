"""The compiled loop of the annealing: proposals, the exact change of the loss, acceptance.

With Q tokens of non-members and P of members, counts b and a of a token, c = a + b, r = b / c and t = P / Q - 1, the
divergence in bits is

    1 + (log P - H(non-members)) / 2 - E / (2 P),    E = sum of y log y - a log a,    y = a + b P / Q = c (1 + r t).

Tokens that non-members lack (b = 0) add nothing to E, so only the others are followed. And as t is small (the
margin over Q), ln(1 + r t) is a short power series, so E needs no more than these sums over tokens, of which an
exchange of two texts changes only what stands in them:

    0: c log c - a log a    1: b log c    2 to 5: b r^(k-1), k = 2 to 5

The logarithms are of whole numbers, from a table: the loop computes none. Where t is too large for the series (few
tokens, or a first phase) E is summed directly.
"""

from __future__ import annotations

import math

import numpy as np

from olmodetect_jax.compiled import compiled

_SUMS = 6
_SERIES_LIMIT = 2e-3  # largest |t| of the series: the first term it leaves out is below 1e-17
_CANCELLED = 1e-2  # share of the mean square below which a variance from sums has lost digits that the loss shows

# Places in the vector of what the loop keeps: tokens of the members; loss, NaN if it has to be computed anew;
# temperature; sums over dated members; uniforms taken; exchanges of either phase; the last change of the loss.
TOKENS, LOSS, TEMPERATURE, DAYS, DAYS_SQUARED, DATED, USED, PHASE_1, ACCEPTED, CHANGE = range(10)


@compiled(error_model="numpy")
def all_sums(a: np.ndarray, b: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """The six sums from all counts: [6] float64."""
    sums = np.zeros(_SUMS)
    for i in range(len(a)):
        c = a[i] + b[i]
        sums[0] += c * logs[c] - a[i] * logs[a[i]]
        sums[1] += b[i] * logs[c]
        r = b[i] / c
        term = b[i] * r
        for k in range(2, _SUMS):
            sums[k] += term
            term *= r
    return sums


@compiled(error_model="numpy")
def divergence(
    sums: np.ndarray, members: float, others: float, entropy: float, a: np.ndarray, b: np.ndarray, logs: np.ndarray
) -> float:
    """Jensen-Shannon divergence in bits.

    Args:
        sums: of the counts.
        members: P, tokens of the members.
        others: Q, tokens of the non-members.
        entropy: of the non-members, in bits.
        a: counts in members, for the direct sum.
        b: counts in non-members.
        logs: base-2 logarithms of whole numbers, 0 for 0.
    """
    t = members / others - 1.0
    if abs(t) <= _SERIES_LIMIT:
        power = t * t
        series = t * others + power * (sums[2] / 2 - t * sums[3] / 6 + power * sums[4] / 12 - power * t * sums[5] / 20)
        found = sums[0] + t * sums[1] + series / math.log(2.0)
    else:
        found = 0.0
        for i in range(len(a)):
            y = a[i] + b[i] * (members / others)
            found += y * math.log2(y) - a[i] * logs[a[i]]
    return max(0.0, 1.0 + (math.log2(members) - entropy) / 2.0 - found / (2.0 * members))


@compiled(error_model="numpy")
def _variance(days: np.ndarray, chosen: np.ndarray, out: int, into: int, mean: float) -> float:
    """Of the dated members' days once `into` has come for `out`, summed around a number near their mean."""
    moved, squared, dated = 0.0, 0.0, 0
    for text in chosen:
        apart = (days[into] if text == out else days[text]) - mean
        if not math.isnan(apart):
            moved, squared, dated = moved + apart, squared + apart * apart, dated + 1
    return squared / dated - (moved / dated) ** 2


@compiled(error_model="numpy")
def temporal(
    moved: float, squared: float, dated: float, target: np.ndarray,
    days: np.ndarray, chosen: np.ndarray, out: int, into: int,
) -> float:  # fmt: skip
    """The temporal term from sums over the dated members, or from their days where they lie close together.

    Args:
        moved: sum of their centred days.
        squared: sum of the squares.
        dated: how many there are.
        target: mean and standard deviation of the non-members' centred days, and how many are dated.
        days: centred days of each text, NaN where undated.
        chosen: texts that are members.
        out: the one of them that the sums no longer have; -1 if they are of `chosen`.
        into: the text that they have for it.
    """
    if target[2] == 0:
        return 0.0
    if dated == 0:
        return math.inf
    mean, square = moved / dated, squared / dated
    variance = square - mean * mean
    if variance < _CANCELLED * square:
        variance = _variance(days, chosen, out, into, mean)
    spread = math.sqrt(max(0.0, variance))
    unit = target[1] if target[1] > 0 else 1.0
    return (abs(mean - target[0]) + abs(spread - target[1])) / unit


@compiled(error_model="numpy")
def _sums_after(
    out: int, into: int, starts: np.ndarray, ids: np.ndarray, counts: np.ndarray,
    a: np.ndarray, b: np.ndarray, logs: np.ndarray, sums: np.ndarray, after: np.ndarray,
) -> None:  # fmt: skip
    """The sums once a text has left and another has come; both texts' tokens are in order."""
    s0, s1, s2, s3, s4, s5 = sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]
    i, i_end, j, j_end = starts[out], starts[out + 1], starts[into], starts[into + 1]
    while i < i_end or j < j_end:
        if j == j_end or (i < i_end and ids[i] < ids[j]):
            token, change = ids[i], -counts[i]
            i += 1
        elif i == i_end or ids[j] < ids[i]:
            token, change = ids[j], counts[j]
            j += 1
        else:
            token, change = ids[i], counts[j] - counts[i]
            i += 1
            j += 1
            if change == 0:
                continue
        old = a[token]
        new, weight = old + change, b[token]
        c_old, c_new = old + weight, new + weight
        s0 += (c_new * logs[c_new] - new * logs[new]) - (c_old * logs[c_old] - old * logs[old])
        s1 += weight * (logs[c_new] - logs[c_old])
        r_old, r_new = weight / c_old, weight / c_new
        x_old, x_new = weight * r_old, weight * r_new
        s2 += x_new - x_old
        x_old, x_new = x_old * r_old, x_new * r_new
        s3 += x_new - x_old
        x_old, x_new = x_old * r_old, x_new * r_new
        s4 += x_new - x_old
        s5 += x_new * r_new - x_old * r_old
    after[0], after[1], after[2], after[3], after[4], after[5] = s0, s1, s2, s3, s4, s5


@compiled(error_model="numpy")
def _move_counts(out: int, into: int, starts: np.ndarray, ids: np.ndarray, counts: np.ndarray, a: np.ndarray) -> None:
    for place in range(starts[out], starts[out + 1]):
        a[ids[place]] -= counts[place]
    for place in range(starts[into], starts[into + 1]):
        a[ids[place]] += counts[place]


@compiled(error_model="numpy")
def run(
    outs: np.ndarray, ins: np.ndarray, uniforms: np.ndarray,
    chosen: np.ndarray, rest: np.ndarray,
    starts: np.ndarray, ids: np.ndarray, counts: np.ndarray, lengths: np.ndarray, days: np.ndarray,
    a: np.ndarray, b: np.ndarray, logs: np.ndarray, sums: np.ndarray,
    others: float, entropy: float, target: np.ndarray, margin: float, factor: float, stale: bool,
    state: np.ndarray,
) -> None:  # fmt: skip
    """Works off a block of proposals; `chosen`, `rest`, `a`, `sums` and `state` are changed in place.

    Args:
        outs: [N] places in `chosen` that are proposed to leave.
        ins: [N] places in `rest` that are proposed to come.
        uniforms: numbers in [0, 1), taken one after the other where the rule draws one.
        chosen: texts that are members now.
        rest: texts that are not.
        starts: where each text's tokens begin in `ids` and `counts`; one more entry for the end.
        ids: tokens of the texts that non-members have too, each once a text, in order.
        counts: how often.
        lengths: tokens of each text, all of them.
        days: centred days of each text, NaN where undated.
        a: counts in members.
        b: counts in non-members, positive.
        logs: base-2 logarithms of whole numbers, 0 for 0.
        sums: of `a` and `b`.
        others: tokens of the non-members.
        entropy: of the non-members.
        target: of the dates.
        margin: tokens that members may differ from non-members.
        factor: of the temperature, at each accepted exchange of the second phase.
        stale: whether exchanges of the first phase leave the loss as it was (the released code).
        state: what the loop keeps, by the places above.
    """
    trial = np.empty(_SUMS)
    for step in range(len(outs)):
        out, into = chosen[outs[step]], rest[ins[step]]
        tokens = state[TOKENS]
        after = tokens - lengths[out] + lengths[into]
        first_phase = abs(tokens - others) > margin
        if first_phase:
            if abs(after - others) >= abs(tokens - others):
                continue
        elif abs(after - others) > margin:
            continue
        moved, squared, dated = state[DAYS], state[DAYS_SQUARED], state[DATED]
        if not math.isnan(days[out]):
            moved, squared, dated = moved - days[out], squared - days[out] * days[out], dated - 1
        if not math.isnan(days[into]):
            moved, squared, dated = moved + days[into], squared + days[into] * days[into], dated + 1
        _sums_after(out, into, starts, ids, counts, a, b, logs, sums, trial)
        if first_phase:
            state[PHASE_1] += 1
            if not stale:
                state[LOSS] = math.nan
            _move_counts(out, into, starts, ids, counts, a)
        else:
            if math.isnan(state[LOSS]):
                state[LOSS] = divergence(sums, tokens, others, entropy, a, b, logs) + temporal(
                    state[DAYS], state[DAYS_SQUARED], state[DATED], target, days, chosen, -1, -1
                )
            _move_counts(out, into, starts, ids, counts, a)
            loss = divergence(trial, after, others, entropy, a, b, logs) + temporal(
                moved, squared, dated, target, days, chosen, out, into
            )
            change = loss - state[LOSS]
            state[CHANGE] = change
            accepted = change < 0
            if not accepted:
                accepted = uniforms[int(state[USED])] < math.exp(-change / state[TEMPERATURE])
                state[USED] += 1
            if not accepted:
                _move_counts(into, out, starts, ids, counts, a)
                continue
            state[LOSS] = loss
            state[TEMPERATURE] *= factor
            state[ACCEPTED] += 1
        sums[:] = trial
        chosen[outs[step]], rest[ins[step]] = into, out
        state[TOKENS], state[DAYS], state[DAYS_SQUARED], state[DATED] = after, moved, squared, dated
