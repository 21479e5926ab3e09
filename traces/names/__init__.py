"""Interprets the names of GPUs, ops, collectives and memory copies."""

from collections.abc import Iterable, Mapping


def did_you_mean(
    name: str, known: Iterable[str], n: int = 3, cutoff: float = 0.5, form: str = "{}", shown: Mapping[str, str] | None = None
) -> str:
    """Return a question such as "did you mean A or B?" with up to `n` known names that are similar to `name`. Return "" if no
    known name is similar. `form` is the text around the question. If `shown` maps a known name to a text, the question contains
    this text instead of the name."""
    from difflib import get_close_matches  # slow to import, and needed only for errors

    near = [(shown or {}).get(one, one) for one in get_close_matches(name, known, n, cutoff)]
    return form.format(f"did you mean {' or '.join(near)}?") if near else ""
