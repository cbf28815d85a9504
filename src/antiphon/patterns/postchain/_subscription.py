"""SUBSCRIBE_THREAD: whoever says it is told what comes of a thread, as the one is who has made it."""

from __future__ import annotations

from antiphon.protocol import Reply, Request

__all__ = ["SubscribeThread", "ThreadSubscribed"]


class ThreadSubscribed(Reply, frozen=True, type="THREAD_SUBSCRIBED"):
    """From now on, at the end of each turn."""

    thread_id: str
    subscriber: str


class SubscribeThread(Request[ThreadSubscribed], frozen=True, type="SUBSCRIBE_THREAD", family="thread"):
    """Be told THREAD_RESULT too."""

    thread_id: str
