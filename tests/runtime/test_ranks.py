"""Two ranks decide and learn as one: with uneven shares, and when only one of them sees something."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from scenarios import alone, together
from torch import nn

from esper.policy.normaliser import moments
from esper.runtime.placement import PeerLost
from esper.runtime.ranks import Ranks

Found = dict[str, Any]


@pytest.fixture(scope="module")
def pair(warm_children: None) -> list[Found]:
    return together()


@pytest.fixture(scope="module")
def single() -> Found:
    return alone()


def equal_parameters(pair: list[Found], scenario: str) -> None:
    """Policies that differ by a bit drift apart permanently."""
    for first, second in zip(pair[0][scenario][0], pair[1][scenario][0], strict=True):
        assert torch.equal(first, second)


@pytest.mark.slow
def test_what_ranks_tell_one_another(pair: list[Found]) -> None:
    for rank, found in enumerate(pair):
        assert found["exchanges"] == {
            "sum": [3.0, 3.0],
            "all_gather": ["rank 0", "rank 1"],
            "gather": [0, 1] if rank == 0 else [],
            "broadcast": "from 0",
        }


@pytest.mark.parametrize("exchange", ["all_gather", "gather", "broadcast"])
@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3, device="meta"),
        moments(torch.zeros(2, 3, device="meta")),
        {"deep": [nn.Linear(1, 1, device="meta")]},
    ],
    ids=["tensor", "record", "module"],
)
def test_objects_with_tensors_of_a_device_are_refused_before_they_are_sent(exchange: str, value: object) -> None:
    """They would arrive on the sender's device, whose number means another one to the receiver."""
    with pytest.raises(ValueError, match=r"ranks exchange only what is on the CPU, but a tensor \[.*\] is on meta"):
        getattr(Ranks(rank=0, size=2), exchange)(value)


def cuda_error(text: str) -> RuntimeError:
    return torch.AcceleratorError(f"CUDA error: {text}\nCUDA kernel errors might be asynchronously reported")


GLOO = "[third_party/gloo/gloo/transport/tcp/"
LOST = [
    RuntimeError(f"{GLOO}pair.cc:537] Read error [127.0.0.1]:18589: Connection reset by peer. This is typically"),
    RuntimeError(f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:3470."),
    RuntimeError(f"{GLOO}unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete"),
    RuntimeError("Application timeout caused pair closure"),
    dist.DistBackendError("NCCL error in: ncclRemoteError: A call failed possibly due to a network error"),
    dist.DistBackendError("ncclSystemError: Last error:\nsocketProgress: Connection closed by remote peer a<1>"),
    dist.DistBackendError("NCCL communicator was aborted on rank 1."),
    dist.DistStoreError("wait timeout after 300000ms, keys: /default_pg/0"),
    dist.DistNetworkError("The client socket has failed to connect to any network address of (a, 1)."),
]
OWN = [
    cuda_error("an illegal memory access was encountered"),
    cuda_error("the launch timed out and was terminated"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    dist.DistBackendError("ncclUnhandledCudaError: Call to CUDA function failed.\nCuda failure 700 'launch timed out'"),
    dist.DistBackendError("ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
    dist.DistNetworkError("The server socket has failed to listen on any local network address. EADDRINUSE"),
    RuntimeError("Expected all tensors to be on the same device"),
]


@pytest.mark.parametrize("error", [*LOST, *OWN], ids=lambda error: str(error).partition("\n")[0][-40:])
def test_only_a_lost_peer_is_reported_as_one(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other errors of an exchange are this rank's own, and shown unchanged."""

    def fail(tensor: torch.Tensor) -> None:
        raise error

    monkeypatch.setattr(dist, "all_reduce", fail)
    with pytest.raises(RuntimeError) as caught:
        Ranks(rank=0, size=2).sum(torch.zeros(1))
    if error in LOST:
        assert isinstance(caught.value, PeerLost)
        assert caught.value.__cause__ is error
    else:
        assert caught.value is error


@pytest.mark.slow
def test_all_ranks_stop_at_the_same_point_for_a_signal_that_one_has_heard(pair: list[Found], single: Found) -> None:
    """The answer comes one point late where there are others to ask, and at once where there are none."""
    assert [found["votes"] for found in pair] == [[0, 0, 0, 15, 15, 15, 15]] * 2
    assert single["votes"] == [0, 0, 15, 15, 15, 15, 15]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["uneven", "uneven_per_head", "uneven_a2c", "uneven_imitation"])
def test_uneven_shares_learn_what_one_rank_with_all_environments_learns(
    pair: list[Found], single: Found, scenario: str
) -> None:
    equal_parameters(pair, scenario)
    for shared, whole in zip(pair[0][scenario][0], single[scenario][0], strict=True):
        torch.testing.assert_close(shared, whole, rtol=1e-4, atol=1e-6)
    metrics, expected = pair[0][scenario][1], single[scenario][1]
    assert metrics == pair[1][scenario][1], "every rank reports the whole"
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        close = metrics[name] is None if value is None else metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-6)
        assert close, name


@pytest.mark.slow
def test_advantages_are_normalised_over_all_ranks(pair: list[Found], single: Found) -> None:
    both = torch.cat([found["advantages"] for found in pair])
    torch.testing.assert_close(both, single["advantages"], rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_the_kl_of_one_rank_stops_both_before_the_same_step(pair: list[Found], single: Found) -> None:
    equal_parameters(pair, "kl_of_one_rank")
    [first, second] = [found["kl_of_one_rank"][1] for found in pair]
    assert first == second
    assert first["losses/early_stop_epoch"] == single["kl_of_one_rank"][1]["losses/early_stop_epoch"] == 0
    assert first["losses/approx_kl"] == pytest.approx(single["kl_of_one_rank"][1]["losses/approx_kl"])
    assert first["losses/policy_loss"] is None, "no step was taken"


@pytest.mark.slow
def test_a_loss_that_is_not_finite_on_one_rank_is_skipped_by_both(pair: list[Found]) -> None:
    equal_parameters(pair, "broken_on_one_rank")
    for found in pair:
        parameters, metrics = found["broken_on_one_rank"]
        assert metrics["losses/skipped_minibatches"] == 1
        assert metrics["losses/policy_loss"] is not None, "the other minibatch was learned from"
        assert all(parameter.isfinite().all() for parameter in parameters)


@pytest.mark.slow
def test_a_rollout_that_is_not_finite_on_one_rank_is_no_step_of_a2c_on_either(pair: list[Found], single: Found) -> None:
    equal_parameters(pair, "broken_a2c")
    for found in (*pair, single):
        parameters, metrics = found["broken_a2c"]
        assert metrics["losses/skipped_minibatches"] == 1
        assert metrics["losses/policy_loss"] is None
        assert all(parameter.isfinite().all() for parameter in parameters)


@pytest.mark.slow
def test_merged_normalisers_equal_that_of_one_rank(pair: list[Found], single: Found) -> None:
    expected = single["merged_normaliser"]
    for name, value in expected.items():
        assert torch.equal(pair[0]["merged_normaliser"][name], pair[1]["merged_normaliser"][name])
        torch.testing.assert_close(pair[0]["merged_normaliser"][name], value, rtol=1e-12, atol=0)
    assert float(expected["count"]) == 2 * 5 * 7


@pytest.mark.slow
def test_all_ranks_look_closer_after_an_anomaly_that_one_has_seen_and_fall_back_together(
    pair: list[Found], single: Found
) -> None:
    """The second iteration is kept at debug, with the actions of every environment, and learning is the same."""
    equal_parameters(pair, "escalates")
    for found in (*pair, single):
        assert found["escalates"][1] == [("debug", "debug"), ("normal", "normal"), ("normal", "normal")]
    for found in (pair[0], single):
        told = found["escalates"][2]
        anomalies = {(event["iteration"], event["name"]) for event in told if event["kind"] == "anomaly"}
        assert anomalies == {(1, "ratio_explosion")}
        changes = [(event["iteration"], event["now"]) for event in told if event["kind"] == "level_changed"]
        assert changes == [(1, "debug"), (2, "normal")]
        actions = [(event["iteration"], event["environment"]) for event in told if event["kind"] == "last_action"]
        assert sorted(actions) == [(2, environment) for environment in (0, 1, 2) for _ in range(4)]


@pytest.mark.slow
def test_ranks_share_a_search_and_find_the_same(pair: list[Found], single: Found) -> None:
    """Returns differ by rounding from those of one rank, whose stacks are higher."""
    first, second = pair[0]["tuned"], pair[1]["tuned"]
    assert first == second
    assert first["spent"] == single["tuned"]["spent"]
    assert 0 < first["spent"]["schedule_best"] <= 60
    assert first["returns"]["static_full"] != 0, "a mean over the pairs of both"
