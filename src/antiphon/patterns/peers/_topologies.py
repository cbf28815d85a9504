"""Topologies: who may ask whom, for the shapes that most systems of peers have.

```
star            pipeline          mesh                hierarchy

    a           a ─► b ─► c       a ◄──► b            a
 ┌──┼──┐                          ▲      ▲            ├─► b ─► d
 ▼  ▼  ▼                          └► c ◄─┘            └─► c
 b  c  d
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, Union, cast

__all__ = ["Topology", "Tree", "hierarchy", "mesh", "pipeline", "star"]

Topology: TypeAlias = dict[str, tuple[str, ...]]
"""By peer, whom it may ask."""
Tree: TypeAlias = Mapping[str, Union["Tree", Iterable[str]]]
"""By peer, those below it: a tree again, or names."""


def star(center: str, leaves: Iterable[str]) -> Topology:
    """One in the middle asks all others, who ask nobody."""
    around = tuple(leaves)
    return _checked({center: around, **dict.fromkeys(around, ())}, [center, *around])


def pipeline(*names: str) -> Topology:
    """Each asks the next."""
    following = [(name,) for name in names[1:]]
    return _checked(dict(zip(names, [*following, ()], strict=False)), names)


def mesh(*names: str) -> Topology:
    """Everybody asks everybody else."""
    return _checked({name: tuple(other for other in names if other != name) for name in names}, names)


def hierarchy(tree: Tree) -> Topology:
    """Each asks those directly below it."""
    found: Topology = {}
    named: list[str] = []
    for name, below in tree.items():
        found[name] = tuple(below)
        named.append(name)
        under = hierarchy(cast("Tree", below)) if isinstance(below, Mapping) else dict.fromkeys(below, ())
        named += under
        found |= under
    return _checked(found, named)


def _checked(topology: Topology, named: Iterable[str]) -> Topology:
    names = list(named)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]!r} stands in two places; name each peer once")
    return topology
