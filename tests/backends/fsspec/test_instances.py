"""The file systems a load makes for itself: shared under equal options, closed when nobody needs them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from streamer.backends.fsspec import instances
from streamer.backends.fsspec.instances import IDLE_KEPT, Instances, InstanceSnapshot, close_idle, shared, stop_sharing

PATIENCE_S = 10.0


class Counted(AsyncFileSystem):  # type: ignore[misc]
    """One that tells when it is made and closed."""

    made = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        type(self).made += 1
        self.closed = threading.Event()


class Remote(MemoryFileSystem):  # type: ignore[misc]
    """One that fsspec makes and keeps."""

    protocol = "remote"


class User:
    """Whoever reads from a file system."""


class Login:
    """Credentials that look like any other, so that none is shown."""

    def __repr__(self) -> str:
        return "<Login>"


async def close(fs: Counted) -> None:
    fs.closed.set()


@pytest.fixture(autouse=True)
def _own_instances(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count no file system of another test, whose last user may be collected as garbage during this one."""
    own = Instances()
    monkeypatch.setattr(instances, "INSTANCES", own)
    yield
    close_idle()


def of(user: User, **options: Any) -> Counted:
    fs: Counted = shared(user, Counted, options, close)
    return fs


def used_and_left(**options: Any) -> Counted:
    return of(User(), **options)


def test_equal_options_share_one_file_system_and_others_have_their_own() -> None:
    one, other = User(), User()
    assert of(one, key="a", more={"x": [1, 2]}) is of(other, more={"x": [1, 2]}, key="a")
    assert of(one, key="a") is not of(one, key="b")
    assert of(one, flag=True) is not of(one, flag=1)


def test_two_logins_that_look_alike_are_not_mixed() -> None:
    first, second = Login(), Login()
    user = User()
    assert of(user, credential=first) is of(user, credential=first)
    assert of(user, credential=first) is not of(user, credential=second)
    assert of(user, credential=[{"login": first}]) is not of(user, credential=[{"login": second}])


def test_unhashable_values_are_distinguished_too() -> None:
    user = User()
    data = bytearray(b"x")
    assert of(user, token=data) is of(user, token=data)
    assert of(user, token=data) is not of(user, token=bytearray(b"x"))


def test_the_last_ones_are_kept_for_the_next_load_and_all_others_are_closed() -> None:
    left = [used_and_left(number=number) for number in range(IDLE_KEPT + 3)]
    assert all(fs.closed.wait(PATIENCE_S) for fs in left[:3])
    assert not any(fs.closed.is_set() for fs in left[3:])
    assert used_and_left(number=5) is left[5]


def test_the_one_that_was_used_last_is_kept_longest() -> None:
    left = [used_and_left(number=number) for number in range(IDLE_KEPT)]
    used_and_left(number=0)
    used_and_left(number=-1)
    assert left[1].closed.wait(PATIENCE_S)
    assert not left[0].closed.is_set()


def test_a_file_system_in_use_is_never_closed() -> None:
    user = User()
    needed = of(user, number="needed")
    for number in range(3 * IDLE_KEPT):
        used_and_left(number=number)
    close_idle()
    time.sleep(0.05)
    assert not needed.closed.is_set()
    del user
    close_idle()
    assert needed.closed.wait(PATIENCE_S)


def test_an_abandoned_file_system_is_not_shared_and_closed_after_its_last_user() -> None:
    user = User()
    given_up = of(user, number="given up")
    stop_sharing(given_up)
    assert used_and_left(number="given up") is not given_up
    assert not given_up.closed.is_set()
    del user
    assert given_up.closed.wait(PATIENCE_S)


def test_an_unshared_file_system_is_closed_with_its_user() -> None:
    user = User()
    own = of(user, number=1, skip_instance_cache=True)
    assert own is not of(user, number=1)
    del user
    assert own.closed.wait(PATIENCE_S)


def test_our_file_systems_neither_use_nor_fill_the_cache_of_fsspec() -> None:
    theirs = Counted(number="theirs")
    user = User()
    assert of(user, number="theirs") is not theirs
    assert list(Counted._cache.values()) == [theirs]
    Counted.clear_instance_cache()


def test_two_threads_that_make_the_same_file_system_use_one_and_close_the_other() -> None:
    both_make = threading.Barrier(2)
    made: list[Slow] = []

    class Slow(Counted):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)
            both_make.wait(PATIENCE_S)

    users = [User(), User()]
    found: list[Any] = []
    threads = [threading.Thread(target=lambda user=user: found.append(shared(user, Slow, {}, close))) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found[0] is found[1]
    (other,) = (fs for fs in made if fs is not found[0])
    assert other.closed.wait(PATIENCE_S)
    assert not found[0].closed.is_set()


def test_a_user_may_end_in_the_middle_of_anything() -> None:
    """The garbage collector may run a finalizer in a thread that holds the very lock it needs."""
    users = [User() for _ in range(IDLE_KEPT + 1)]
    made = [of(user, number=number) for number, user in enumerate(users)]
    with instances.INSTANCES._lock:
        users.clear()
    used_and_left(number=0)
    close_idle()
    assert all(fs.closed.wait(PATIENCE_S) for fs in made)


def test_a_connection_that_cannot_be_closed_is_none() -> None:
    tried = threading.Event()

    async def fail(fs: Counted) -> None:
        tried.set()
        raise OSError

    shared(User(), Counted, {"number": "stubborn"}, fail)
    close_idle()
    assert tried.wait(PATIENCE_S)


def test_a_forked_child_leaves_what_its_parent_made_to_it() -> None:
    user = User()
    parents = of(user, number="parent's")
    idle = used_and_left(number="idle")
    child = os.fork()
    if child == 0:
        is_own = of(User(), number="parent's") is not parents
        del user
        close_idle()
        asyncio.run(asyncio.sleep(0.05))
        os._exit(0 if is_own and not idle.closed.is_set() and not parents.closed.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert of(user, number="parent's") is parents


# --- what fsspec itself keeps -----------------------------------------------------------------------------------------


def kept(cls: Any = Remote) -> list[Any]:
    return list(cls._cache.values())


def opened(user: User, **options: Any) -> Any:
    snapshot = InstanceSnapshot()
    fs = Remote(**options)
    snapshot.forget_new(user, fs)
    return fs


@pytest.fixture
def _no_remote() -> Iterator[None]:
    Remote.clear_instance_cache()
    yield
    Remote.clear_instance_cache()


@pytest.mark.usefixtures("_no_remote")
def test_what_fsspec_made_for_a_load_leaves_its_cache_after_it() -> None:
    made = [opened(User(), number=number) for number in range(IDLE_KEPT + 3)]
    assert kept() == made[3:]
    close_idle()
    assert kept() == []


@pytest.mark.usefixtures("_no_remote")
def test_what_fsspec_kept_before_stays() -> None:
    theirs = Remote(number=1)
    assert opened(User(), number=1) is theirs
    close_idle()
    assert kept() == [theirs]


@pytest.mark.usefixtures("_no_remote")
def test_what_a_load_still_needs_stays() -> None:
    user = User()
    needed = opened(user, number=1)
    assert opened(User(), number=1) is needed
    close_idle()
    assert kept() == [needed]
    del user
    close_idle()
    assert kept() == []


@pytest.mark.usefixtures("_no_remote")
def test_what_holds_an_object_of_the_callers_stays() -> None:
    holding = opened(User(), options={"connector": Login()})
    close_idle()
    assert kept() == [holding]


@pytest.mark.usefixtures("_no_remote")
def test_every_part_of_a_chain_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("remote", Remote, clobber=True)
    before = kept(fsspec.get_filesystem_class("simplecache"))
    snapshot, user = InstanceSnapshot(), User()
    fs, _ = fsspec.url_to_fs("simplecache::remote://a", remote={"number": 1})
    snapshot.forget_new(user, fs)
    assert len(kept()) == 1
    del user, snapshot
    close_idle()
    assert kept() == []
    assert kept(fsspec.get_filesystem_class("simplecache")) == before
