"""Registries: names that are words, one thing by each, and registrations that can be undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from esper.runtime.registry import Registry, recording

Build = Callable[[], int]


def one() -> int:
    return 1


def two() -> int:
    return 2


def run_again(result: int) -> Build:
    """A function as its module defines it each time it is run."""

    def build() -> int:
        return result

    build.__qualname__ = "build"
    return build


@pytest.fixture
def registry() -> Registry[Build]:
    return Registry("thing", {"one": one})


@pytest.mark.parametrize("name", ["", "a b", "-a", "a=b", "a/b", None, 3])
def test_a_name_is_a_word(registry: Registry[Build], name: str) -> None:
    with pytest.raises(ValueError, match=r"thing .*: a name is made of letters"):
        registry.register(name, two)
    assert list(registry) == ["one"]


def test_an_entry_is_a_function(registry: Registry[Build]) -> None:
    with pytest.raises(ValueError, match="thing 'two' must be a function, got 2"):
        registry.register("two", 2)  # type: ignore[arg-type]


def test_two_things_of_one_name_are_refused_with_both_places(registry: Registry[Build]) -> None:
    with pytest.raises(ValueError, match=r"thing 'one' already, .*test_registry\.one: .* for .*test_registry\.two"):
        registry.register("one", two)
    assert registry["one"] is one
    for lambdas in range(2):  # which have no name to tell them apart by
        registry.register(f"lambda_{lambdas}", lambda: 1)
        with pytest.raises(ValueError, match="already"):
            registry.register(f"lambda_{lambdas}", lambda: 2)


def test_a_function_of_a_module_that_was_run_again_takes_the_place_of_its_former_self(
    registry: Registry[Build],
) -> None:
    registry.register("two", run_again(2))
    registry.register("three", one)
    registry.register("two", run_again(3))
    assert list(registry) == ["one", "two", "three"]
    assert registry["two"]() == 3


def test_all_functions_of_an_entry_tell_whether_it_is_the_same() -> None:
    registry: Registry[tuple[Build, Build]] = Registry("pair", functions=lambda entry: entry)
    registry.register("both", (one, two))
    registry.register("both", (one, two))
    with pytest.raises(ValueError, match=r"pair 'both' already"):
        registry.register("both", (one, one))


def test_an_unknown_name_is_met_with_the_choices(registry: Registry[Build]) -> None:
    registry.register("two", two)
    assert registry.find("two") is two
    with pytest.raises(ValueError, match=r"^thing: unknown 'twoo' \(did you mean 'two'\?\); choose from one, two$"):
        registry.find("twoo")
    with pytest.raises(ValueError, match=r"^some\.key: unknown 'x'; choose from one, two$"):
        registry.find("x", key="some.key")


def test_registrations_are_undone_and_made_again(registry: Registry[Build]) -> None:
    registry.register("two", first := run_again(2))
    with recording() as noted:
        registry.register("three", one)
        registry.register("two", run_again(3))
        Registry("other", {"own": one})  # Esper's own entries are nobody's registrations
    assert [registration.name for registration in noted] == ["three", "two"]
    registry.register("outside", one)
    for registration in reversed(noted):
        registration.undo()
    assert list(registry) == ["one", "two", "outside"]
    assert registry["two"] is first
    for registration in noted:
        registration.again()
    assert list(registry) == ["one", "two", "outside", "three"]
    assert registry["two"]() == 3


def test_what_fails_leaves_nothing(registry: Registry[Build]) -> None:
    def fail() -> None:
        with recording():
            registry.register("two", two)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(registry) == ["one"]
